#!/bin/sh
# seatrial-install: on standard input, a tar archive of the source of seatrial; installs it for this machine's user. What it
# needs is compared with the SHA-256 in that source.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -x --no-same-owner
pip=/opt/seatrial/bin/pip
$pip install --quiet --disable-pip-version-check --require-hashes -r "$folder/requirements/run.txt"
# What builds it does not stay.
$pip install --quiet --disable-pip-version-check --require-hashes -r "$folder/requirements/build.txt" --target "$folder/build"
PYTHONPATH="$folder/build" $pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  --no-build-isolation "$folder"
/opt/seatrial/bin/seatrial --version
