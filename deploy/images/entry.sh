#!/bin/sh
# Entry point of the image of the root Dockerfile. As root, it becomes user 10001 and drops all privileges. It does not
# become the owner of /reports: in a shared folder another user may have put a folder in the place of "$PWD/reports", and
# could stop or kill all processes of that owner.
set -eu
if [ "$(id -u)" != 0 ]; then
  exec tini -- seatrial "$@"
fi
if ! setpriv --reuid 10001 --regid 0 --clear-groups test -w /reports; then
  echo "Error: user 10001 cannot write to /reports, the folder of -v: add --user \"\$(id -u)\" to docker run, or give that" \
    "folder to the user (chown 10001 reports)." >&2
  exit 3
fi
exec setpriv --reuid 10001 --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all tini -- seatrial "$@"
