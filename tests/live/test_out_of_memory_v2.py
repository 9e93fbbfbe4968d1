"""The same as in ``test_out_of_memory.py`` under cgroup version 2: a separate kernel that mounts only that one.

It is Debian's user-mode-linux (6.1), which runs as a process and sees the files of this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial

KERNEL = shutil.which("linux.uml")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(240),
    pytest.mark.skipif(KERNEL is None, reason="needs linux.uml (Debian's package user-mode-linux)"),
]
LIMIT_BYTES = 160 << 20
"""Little: the kernel maps each page by itself, and a process of this machine may have 65,530 maps."""
_BOOT_AND_RUN_S = 180.0
_INIT = """\
#!/bin/sh
export PATH={path} HOME=/run TMPDIR=/run TERM=dumb PYTHONPATH={source}
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
ip link set lo up
hostname own-kernel
mount -t cgroup2 none /sys/fs/cgroup
cd /sys/fs/cgroup
echo +memory > cgroup.subtree_control
mkdir pod
echo {limit_bytes} > pod/memory.max
cd /run
cat > inside <<'END'
# As in a container: its own group is the root of what is mounted.
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
{command} < /dev/null
END
sh -c 'echo $$ > /sys/fs/cgroup/pod/cgroup.procs; exec unshare --cgroup --mount sh inside'
echo "exit code $?"
sed 's/^/counted: /' /sys/fs/cgroup/pod/memory.events
halt -f
"""


def on_own_kernel(folder: Path, *command: str) -> str:
    """Return what the console shows of a command in a group that allows ``LIMIT_BYTES``."""
    assert KERNEL is not None
    init = folder / "init"
    text = _INIT.format(
        path=os.environ["PATH"],
        source=Path(seatrial.__file__).parents[1],
        command=shlex.join(command),
        limit_bytes=LIMIT_BYTES,
    )
    init.write_text(text)
    init.chmod(0o755)
    words = ["mem=1000M", "rootfstype=hostfs", "rootflags=/", "rw", "quiet", f"init={init}"]
    words += ["con=null", "con0=null,fd:1", "ssl=null"]
    process = subprocess.Popen(
        [KERNEL, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=_BOOT_AND_RUN_S)[0].decode(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_an_out_of_memory_kill_is_called_that(tmp_path: Path) -> None:
    # Rank 1's `tail` keeps all that it reads, since a line never ends.
    greedy = "if [ $RANK = 1 ]; then exec tail -n 1 /dev/zero; fi; sleep 100"
    words = ("launch", "--device=cpu", "--nproc-per-node=2", "--out=/run/out", "--no-python", "sh", "-c", greedy)
    said = on_own_kernel(tmp_path, sys.executable, "-m", "seatrial", *words)
    assert "counted: oom_kill 1" in said, said
    assert "exit code 1" in said, said
    (error,) = (line for line in said.splitlines() if line.startswith("Error: "))
    assert "rank 1 on node own-kernel" in error
    assert "the kernel's out-of-memory killer ended it or a process that it started" in error
    assert "allows 160 MiB" in error
