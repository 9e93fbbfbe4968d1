#!/bin/bash
# seatrial-prepare: makes a launcher, a worker or a single machine of a fresh Ubuntu, once. What it is to be stands in
# /etc/seatrial/settings; how it went, in /etc/seatrial/state: "ready", or "failed: " and why.
set -euo pipefail
# shellcheck source=/dev/null # it is written beside this file by cloud-init
. /etc/seatrial/settings
export HOME=/root DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

fail() {
  echo "failed: $1" > /etc/seatrial/state
  exit 1
}
trap 'fail "line $LINENO of seatrial-prepare; see /var/log/cloud-init-output.log"' ERR

# within SECONDS WHAT COMMAND...: again and again; the way out may not be there yet.
within() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || fail "$what did not work; see /var/log/cloud-init-output.log"
    sleep 5
  done
}
packages() {
  timeout 300 apt-get -q -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=300 -o APT::Update::Error-Mode=any update &&
    timeout 1200 apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
}
as_user() { timeout 1200 runuser -u "$TRIAL_USER" -- env HOME="/home/$TRIAL_USER" "$@"; }

# For connect.sh, and for who compares them by eye. cloud-init tells them too, but after this script.
{
  echo '-----BEGIN SSH HOST KEY KEYS-----'
  cat /etc/ssh/ssh_host_ed25519_key.pub
  ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub
  echo '-----END SSH HOST KEY KEYS-----'
} > /dev/console
# Whoever is on the way to a mirror chooses words that apt and pip show, and they must not stand beside those keys.
exec >> /var/log/cloud-init-output.log 2>&1

systemctl is-active --quiet seatrial-stop.timer || fail "the timer that stops this machine is not set; see journalctl"
grep -qxFf /etc/seatrial/hosts /etc/hosts || cat /etc/seatrial/hosts >> /etc/hosts

wanted=(python3-venv)
# What is a mount already is shared by other means.
shares=
if [ "$SHARES" ] && ! mountpoint -q /shared; then
  shares=yes
  [ "$KIND" = launcher ] && wanted+=(nfs-kernel-server) || wanted+=(nfs-common)
fi
# The driver of AMD's GPUs is not in the image.
[ "$KIND" != amd ] || wanted+=("linux-modules-extra-$(uname -r)")
within 900 "apt-get install ${wanted[*]}" packages "${wanted[@]}"

if [ "$KIND" = nvidia ]; then
  nvidia-smi -L || fail "nvidia-smi finds no GPU: the driver of the machine image does not know this one"
elif [ "$KIND" = amd ]; then
  modprobe amdgpu || echo "amdgpu cannot be loaded: this machine works as one with CPUs only"
  usermod -aG video,render "$TRIAL_USER"
fi

# The same path on all machines, so that mpirun and the ranks find each other's programs.
install -d -o "$TRIAL_USER" -g "$TRIAL_USER" /opt/seatrial
as_user python3 -m venv /opt/seatrial
within 900 "pip install $OPEN_MPI" as_user /opt/seatrial/bin/pip install --quiet --no-cache-dir --no-compile "$OPEN_MPI"
if [ "$TORCH_INDEX" ]; then
  within 900 "pip install $TORCH from $TORCH_INDEX" \
    as_user /opt/seatrial/bin/pip install --quiet --no-cache-dir --no-compile --index-url "$TORCH_INDEX" "$TORCH"
  as_user /opt/seatrial/bin/python -c 'import torch; print("torch", torch.__version__)'
fi
# For commands over ssh as well, which read no profile.
echo 'PATH="/opt/seatrial/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"' >> /etc/environment

if [ "$KIND" = launcher ]; then
  as_user install -d -m 700 "/home/$TRIAL_USER/.ssh"
  [ -e "/home/$TRIAL_USER/.ssh/id_ed25519" ] ||
    as_user ssh-keygen -q -t ed25519 -N '' -C launcher -f "/home/$TRIAL_USER/.ssh/id_ed25519"
  printf '%s\n' 'Host worker-*' '  StrictHostKeyChecking yes' '  HashKnownHosts no' '  ConnectTimeout 10' |
    as_user tee "/home/$TRIAL_USER/.ssh/config" > /dev/null
fi
if [ "$SHARES" ]; then
  install -d /shared
  if [ "$shares" ] && [ "$KIND" = launcher ]; then
    echo "/shared $SHARES(rw,sync,no_subtree_check,root_squash)" > /etc/exports
    systemctl enable --quiet nfs-server
    systemctl restart nfs-server
  elif [ "$shares" ]; then
    # A launcher that is gone must not hang who looks for its files.
    echo 'launcher:/shared /shared nfs4 soft,timeo=100,retrans=3,nofail,_netdev 0 0' >> /etc/fstab
    within 900 "mounting launcher:/shared" mount /shared
  fi
  [ "$KIND" != launcher ] || chown "$TRIAL_USER:$TRIAL_USER" /shared
fi
echo ready > /etc/seatrial/state
