#!/usr/bin/env bash
# make_debian_torch.sh FOLDER: for the tests, a Debian 13 with its python3-torch (2.6: no libuv, no MKL, MPI built in) and the
# mpirun of that MPI. As root, with debootstrap; two minutes and 1.5 GB, nothing where it is already.
# Exit code 75: it cannot be made here, for want of a mirror or of rights.
set -euo pipefail
folder=$1
[ -e "$folder/.complete" ] && exit
# The mirror of this machine's own release has the others, too.
. /etc/os-release
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' |
  awk -v wanted="$VERSION_CODENAME" '$1 == wanted && !found++ { print $2 }')
[ "$ID" = debian ] && [ -n "$mirror" ] || { echo "make_debian_torch.sh: apt names no mirror of Debian" >&2; exit 75; }
rm -rf --one-file-system "$folder"
mkdir -p "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
debootstrap --force-check-gpg --variant=minbase --include=ca-certificates,python3,python3-torch,openmpi-bin trixie "$folder" "$mirror" > "$log" || {
  tail -n 20 "$log" >&2
  exit 75
}
touch "$folder/.complete"
