#!/bin/sh
# The start of the image of the root Dockerfile. Docker makes a folder for `-v "$PWD/reports:/reports"` that belongs to
# root. Started as root, we give it to user 10001, or become whom it belongs to, and give all rights away.
set -eu
if [ "$(id -u)" = 0 ]; then
  user=$(stat -c %u /reports)
  if [ "$user" = 0 ]; then
    user=10001
    chown "$user" /reports
  fi
  set -- setpriv --reuid "$user" --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all tini -- seatrial "$@"
else
  set -- tini -- seatrial "$@"
fi
exec "$@"
