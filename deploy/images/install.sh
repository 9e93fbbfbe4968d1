#!/bin/sh
# The steps that the images share. They run as root during a build, with constraints.txt and requirements in /src:
#
#   install.sh system PACKAGE...    install packages of the distribution, and make the user
#   install.sh torch [WORD...]      install torch by these words of pip, if any, in an environment on top of the base image
#   install.sh seatrial             install the source in /src there
#   install.sh mpi                  install mpi4py there
#
# All packages but torch are compared with the SHA-256 in requirements/.
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
  # User 10001 for Kubernetes, and any other user with group 0 for OpenShift: they write only to HOME and /reports.
  # ssh, which mpirun uses, requires a line in /etc/passwd with a shell.
  id -u seatrial > /dev/null 2>&1 ||
    useradd --uid 10001 --gid 0 --create-home --home-dir /home/seatrial --shell /bin/bash seatrial
  mkdir -p /reports
  chown 10001:0 /reports
  chmod 0775 /reports /home/seatrial
  ;;
torch | seatrial | mpi)
  paths='import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sep="\n")'
  if [ ! -e $venv ]; then
    # The environment sees torch of the base image, whose packages stay as they are. AMD's images have torch in an
    # environment: `--system-site-packages` means the Python below it, so a .pth file names its packages too.
    python3 -m venv --system-site-packages --without-pip $venv
    python3 -c "$paths" > "$($venv/bin/python -c "$paths" | head -n 1)/base_image.pth"
  fi
  # Not PIP_CONSTRAINT of the base image: NVIDIA's pins half of the index.
  unset PIP_CONSTRAINT
  pip() { "$venv/bin/python" -m pip "$@"; }
  hashed() { pip install --no-cache-dir --require-hashes -r "/src/requirements/$1.txt"; }
  "$venv/bin/python" -m ensurepip > /dev/null
  case $part in
  torch)
    if [ $# -gt 0 ]; then
      hashed torch
      pip install --no-cache-dir -c /src/constraints.txt "$@"
    fi
    ;;
  seatrial)
    hashed run
    # What builds it stays out of the image.
    pip install --no-cache-dir --require-hashes -r /src/requirements/build.txt --target /src/build
    PYTHONPATH=/src/build pip install --no-cache-dir --no-deps --no-build-isolation /src
    ;;
  mpi) hashed mpi ;;
  esac
  pip uninstall -q -y pip
  rm -rf /root/.cache
  ;;
esac
