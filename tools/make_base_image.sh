#!/usr/bin/env bash
# make_base_image.sh FOLDER IMAGE: for the tests with podman, an image with the Debian and the Python of this machine, so that
# the torch here can be mounted into it. As root, with podman, runc and debootstrap; a minute, nothing if podman has it already.
# FOLDER/containers.conf is written always: podman is to be started with CONTAINERS_CONF naming it.
# Exit code 75: it cannot be made here, for want of a mirror or of rights.
set -euo pipefail
folder=$(realpath "$1") image=$2
mkdir -p "$folder"
# podman asks for a million files, and crun for cgroups of one kind; neither is there in many a virtual machine.
cat > "$folder/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
END
export CONTAINERS_CONF=$folder/containers.conf
podman image exists "$image" && exit

. /etc/os-release
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' |
  awk -v wanted="$VERSION_CODENAME" '$1 == wanted && !found++ { print $2 }')
[ -n "$mirror" ] || { echo "make_base_image.sh: apt names no mirror for $VERSION_CODENAME; see /etc/apt" >&2; exit 75; }
root=$(mktemp -d)
# Not into what debootstrap may have left mounted there.
trap 'rm -rf --one-file-system "$root"' EXIT
# Where Ubuntu has tini and Open MPI.
[ "$ID" = ubuntu ] && components=main,universe || components=main
debootstrap --force-check-gpg --variant=minbase --include=ca-certificates,python3 --components="$components" \
  "$VERSION_CODENAME" "$root/base" "$mirror" > "$root/log" || {
  tail -n 20 "$root/log" >&2
  exit 75
}
# As in images of registries: any user may write there, and podman gives a volume at this place the mode of the folder.
chmod 1777 "$root/base/dev/shm"
tar -C "$root/base" -c . | podman import --change 'CMD ["/bin/bash"]' \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$image" || exit 75
