#!/bin/sh
# Entry point of the image of the root Dockerfile. For `-v "$PWD/reports:/reports"` Docker makes a folder of root. As
# root, this script gives that folder to user 10001, or becomes its owner if that is another user, and drops all
# privileges. A folder of root with anything in it may be one to which another user has put a link in the place of
# "$PWD/reports", such as /etc: it stays as it is.
set -eu
if [ "$(id -u)" = 0 ]; then
  user=$(stat -c %u /reports)
  if [ "$user" = 0 ]; then
    user=10001
    if [ -L /reports ] || [ ! -d /reports ] || [ -n "$(ls -A /reports)" ]; then
      echo "Error: /reports belongs to root and is no empty folder: name another folder in -v, or give the one that you" \
        "mean to user $user (chown)." >&2
      exit 3
    fi
    chown --no-dereference "$user" /reports
  fi
  set -- setpriv --reuid "$user" --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all tini -- seatrial "$@"
else
  set -- tini -- seatrial "$@"
fi
exec "$@"
