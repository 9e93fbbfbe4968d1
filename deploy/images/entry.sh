#!/bin/sh
# Entry point of the image of the root Dockerfile. As root, it becomes the owner of /reports and drops all privileges.
# A folder of root may be one to which another user has put a link in the place of "$PWD/reports", such as an empty
# /etc/profile.d: it stays as it is.
set -eu
if [ "$(id -u)" = 0 ]; then
  user=$(stat -c %u /reports)
  if [ "$user" = 0 ]; then
    echo "Error: /reports belongs to root: make the folder of -v first, as yourself (mkdir -p reports), or give it to" \
      "user 10001 (chown 10001 reports)." >&2
    exit 3
  fi
  set -- setpriv --reuid "$user" --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all tini -- seatrial "$@"
else
  set -- tini -- seatrial "$@"
fi
exec "$@"
