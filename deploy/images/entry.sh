#!/bin/sh
# Entry point of the image of the root Dockerfile. For `-v "$PWD/reports:/reports"` Docker makes a folder of root. As
# root, this script gives that folder to user 10001, or becomes its owner if that is another user, and drops all
# privileges.
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
