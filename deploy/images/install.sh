#!/bin/sh
# What the images share, run as root while one is built: install.sh PACKAGES-OF-THE-DISTRIBUTION, with the source in /src.
#
# TORCH: what pip is to install for torch, where the base image brings none. EXTRA_PIP: further packages.
set -eu

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # several words
apt-get install -y -q --no-install-recommends tini python3-venv $1
apt-get clean
rm -rf /var/lib/apt/lists/*

# Beside what the base image has, not in it: its torch is seen, and its packages stay as they are.
python3 -m venv --system-site-packages /opt/venv
# shellcheck disable=SC2086
/opt/venv/bin/pip install --no-cache-dir -c /src/constraints.txt ${TORCH:-} ${EXTRA_PIP:-} /src
/opt/venv/bin/pip uninstall -q -y pip
rm -rf /src /root/.cache

# User 10001 for Kubernetes, and any other user with group 0 for OpenShift: nothing is written but here and in /reports.
# ssh, which mpirun uses, wants a line in /etc/passwd with a shell.
useradd --uid 10001 --gid 0 --create-home --home-dir /home/seatrial --shell /bin/bash seatrial
mkdir -p /reports
chown 10001:0 /reports
chmod 0775 /reports /home/seatrial
