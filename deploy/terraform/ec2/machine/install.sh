#!/bin/sh
# seatrial-install: on standard input, a tar archive of the source of seatrial; installs it for this machine's user.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -x --no-same-owner
# What it is built and runs with has the versions that it was tested with.
PIP_CONSTRAINT="$folder/constraints.txt" /opt/seatrial/bin/pip install --quiet --disable-pip-version-check \
  --force-reinstall --no-deps "$folder"
PIP_CONSTRAINT="$folder/constraints.txt" /opt/seatrial/bin/pip install --quiet --disable-pip-version-check "$folder"
/opt/seatrial/bin/seatrial --version
