#!/bin/sh
# What the images share, run as root while one is built, with constraints.txt in /src:
#
#   install.sh system PACKAGE...    packages of the distribution, and the user
#   install.sh python WORD...       what pip installs (none: nothing), beside what the base image has
set -eu
part=$1
shift
venv=/opt/trial-venv

case $part in
system)
  export DEBIAN_FRONTEND=noninteractive
  python3 -c 'import ensurepip, venv' 2> /dev/null || set -- "$@" python3-venv
  apt-get update -q
  apt-get install -y -q --no-install-recommends "$@"
  apt-get clean
  rm -rf /var/lib/apt/lists/*
  # User 10001 for Kubernetes, and any other user with group 0 for OpenShift: nothing is written but here and in /reports.
  # ssh, which mpirun uses, wants a line in /etc/passwd with a shell.
  id -u seatrial > /dev/null 2>&1 ||
    useradd --uid 10001 --gid 0 --create-home --home-dir /home/seatrial --shell /bin/bash seatrial
  mkdir -p /reports
  chown 10001:0 /reports
  chmod 0775 /reports /home/seatrial
  ;;
python)
  paths='import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sep="\n")'
  if [ ! -e $venv ]; then
    # Its torch is seen, and its packages stay as they are. AMD's images keep torch in an environment of their own:
    # `--system-site-packages` means the Python below that one, so where it keeps its packages is told, too.
    python3 -m venv --system-site-packages --without-pip $venv
    python3 -c "$paths" > "$($venv/bin/python -c "$paths" | head -n 1)/base_image.pth"
  fi
  [ $# -gt 0 ] || exit 0
  # In place of what a base image has there: NVIDIA's pin half of the index. The build of our package heeds it as well.
  export PIP_CONSTRAINT=/src/constraints.txt
  $venv/bin/python -m ensurepip > /dev/null
  $venv/bin/python -m pip install --no-cache-dir "$@"
  $venv/bin/python -m pip uninstall -q -y pip
  rm -rf /root/.cache
  ;;
esac
