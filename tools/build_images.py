"""Build all images of ours with podman, for the tests in tests/images: build_images.py FOLDER BASE_IMAGE PREFIX.

As root, once tools/make_base_image.sh has made BASE_IMAGE and FOLDER/containers.conf. No registry is asked: BASE_IMAGE
stands in for python:slim, and PREFIX-slim, which is BASE_IMAGE without Python, for debian:bookworm-slim. torch comes
from where pip finds it on this machine (TORCH_PIP_ARGS chooses): its settings, and the folders that they name, are
seen while an image is built, and are not in it.

Exit code 75: nothing can be fetched here, so the Dockerfiles were not tried. 1: a step of one has failed all the same.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["pip_volumes"]

_ROOT = Path(__file__).parents[1]
_PIP_KEYS = ("cert", "extra-index-url", "find-links", "index-url", "trusted-host")
# As the slim images of Debian are made: no documentation and no translations, now or of packages to come.
_SLIM = r"""
ARG BASE
FROM ${BASE}
RUN for path in doc man info locale groff lintian; do \
      echo "path-exclude /usr/share/$path/*" >> /etc/dpkg/dpkg.cfg.d/docker && rm -rf /usr/share/$path/*; \
    done; \
    dpkg-query -W -f '${Package} ${Priority}\n' | sed -nE 's/ (optional|standard)$//p' | xargs apt-mark -q auto \
    && apt-get purge -y -q --auto-remove python3 ca-certificates \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old
"""
# What images of vendors do: AMD's keep torch in an environment, NVIDIA's pin half of the index for pip.
_VENDOR = r"""
ARG BASE
FROM ${BASE}
USER root
RUN /usr/bin/python3 -m venv --without-pip /opt/venv && rm -rf /opt/trial-venv \
    && touch "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_base.py" \
    && echo click==8.0.0 > /etc/pip-constraint.txt
ENV PATH=/opt/venv/bin:/usr/bin:/bin PIP_CONSTRAINT=/etc/pip-constraint.txt
"""


# As the first step of each image fetches; a mirror that does not answer is no mere warning.
_FETCHING = r"""
ARG BASE
FROM ${BASE}
RUN apt-get update -q -o APT::Update::Error-Mode=any
"""
_CANNOT_FETCH = 75


def main() -> None:
    """Do what the first lines say."""
    if len(sys.argv) != 4:
        sys.exit("usage: build_images.py FOLDER BASE_IMAGE PREFIX")
    folder, base, prefix = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")
    pip = pip_volumes(folder / "pip.conf")

    def build(name: str, *words: str, file: str = "deploy/images/Dockerfile", **told: str) -> None:
        arguments = [f"--build-arg={key}={value}" for key, value in told.items()]
        words = ("--pull-never", "-f", file, *words, *arguments, "-t", f"{prefix}-{name}", ".")
        if (why := _failure("podman", "build", "-q", *words)) is None:
            return
        print(f"build_images: {why}", file=sys.stderr)
        _see_that_it_can_fetch(folder, base, torch)
        # A mirror may have been away for a moment.
        if (why := _failure("podman", "build", "-q", *words)) is not None:
            sys.exit(f"build_images: {file} is at fault, as what it fetches can be fetched here: {why}")

    torch = " ".join(["torch", *os.environ.get("TORCH_PIP_ARGS", "").split()])
    # The first one makes the layers with torch, which the next two take over.
    build("worker", "--target=worker", *pip, BASE_IMAGE=base, TORCH=torch)
    build("mpi", "--target=mpi", *pip, BASE_IMAGE=base, TORCH=torch)
    build("machine", *pip, file="Dockerfile", BASE_IMAGE=base, TORCH=torch)
    build("vendor", file=_written(folder / "vendor.Dockerfile", _VENDOR), BASE=f"{prefix}-worker")
    build("vendor-worker", "--target=worker", *pip, BASE_IMAGE=f"{prefix}-vendor")
    # What was taken out must not lie in a layer below.
    build("slim", "--squash-all", file=_written(folder / "slim.Dockerfile", _SLIM), BASE=base)
    build("launcher", "--target=launcher", *pip, LAUNCHER_BASE_IMAGE=f"{prefix}-slim")


def pip_volumes(file: Path) -> list[str]:
    """Where pip looks on this machine, as options of ``podman build``."""
    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    told = dict(re.findall(r"^[\w:]+\.([\w-]+)=(.*)$", listed, re.MULTILINE))
    values = {key: str(ast.literal_eval(told[key])) for key in _PIP_KEYS if key in told}
    words = " ".join(values.values()).split()
    # An index on this disk: the files that it names may lie beside it.
    indexes = [Path(word.removeprefix("file://")).parent for word in words if word.startswith("file://")]
    seen = {path: path for path in (*indexes, *map(Path, words)) if path.is_absolute() and path.exists()}
    if "cert" in values:
        # Not in its own place, where a package of the image may be about to write another.
        seen[Path(values["cert"])] = Path("/etc/pip-cert.pem")
        values["cert"] = "/etc/pip-cert.pem"
    # An address may hold a password.
    file.touch(mode=0o600)
    _written(file, "[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    seen[file] = Path("/etc/pip.conf")
    return [f"--volume={path}:{place}:ro" for path, place in sorted(seen.items())]


def _written(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    return str(file)


def _see_that_it_can_fetch(folder: Path, base: str, torch: str) -> None:
    """Exit with _CANNOT_FETCH unless packages of the distribution, in a container, and those of pip can be had."""
    file = _written(folder / "fetching.Dockerfile", _FETCHING)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed"]
    why = _failure("podman", "build", "-q", "--no-cache", "--pull-never", "-f", file, f"--build-arg=BASE={base}", ".")
    for package in (["hatchling"], torch.split()):
        why = why or _failure(*pip, "--no-cache-dir", *package)
    if why is not None:
        print(f"build_images: nothing can be fetched here: {why}", file=sys.stderr)
        sys.exit(_CANNOT_FETCH)


def _failure(*words: str) -> str | None:
    done = subprocess.run(words, cwd=_ROOT, text=True, capture_output=True, check=False)
    if done.returncode == 0:
        return None
    return f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


if __name__ == "__main__":
    main()
