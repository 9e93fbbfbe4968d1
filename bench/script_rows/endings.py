"""Cases 6a to 6e, 6i to 6k and 6p to 6s: ways in which a script ends, and what is said about it."""

from __future__ import annotations

import signal
from dataclasses import replace

from script_rows.case import Case, on_each

_GLOO = "import torch, torch.distributed as dist\ndist.init_process_group('gloo'"
_MPIS = ("--on Open MPI 5", "--on Open MPI 4", "--on MPICH")
_HOSTS = ("ssh, 2 hosts", "slurm, 2 nodes")
_ONE = ("--nproc-per-node", "1", "script.py")


def _fails(name: str, text: str, said: str) -> Case:
    """Rank 1 fails while rank 0 works on."""
    return Case(
        id="6a",
        name=name,
        text=f"print('rank', rank, 'works', flush=True)\n{text}\ntime.sleep(100)",
        expected=(rf"Error: rank 1 on \S+ {said}", "rank 0 was still running"),
        codes=(1,),
    )


_KILLED = _fails("rank 1 is killed", "if rank: os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIGKILL\)")
_SIGKILL = replace(_KILLED, expected=(*_KILLED.expected, "see dmesg on .*memory limit"))
_FAILURES = (
    _fails("rank 1 raises", "if rank: raise ValueError('bad batch')", "failed with exit code 1: ValueError: bad batch"),
    _fails("rank 1 exits with 3", "if rank: sys.exit(3)", "failed with exit code 3: rank 1 works"),
    *on_each("here", *_MPIS, case=_SIGKILL),
    *on_each(*_HOSTS, case=replace(_SIGKILL, words=_ONE)),
    replace(_SIGKILL, on="Open MPI 4, 2 hosts", words=_ONE),
    _fails("rank 1 crashes", "import ctypes\nif rank: ctypes.string_at(0)", r"was killed by signal 11 \(SIGSEGV\)"),
    Case(
        id="6b",
        name="rank 1 hangs before a barrier, Ctrl-C",
        text=f"{_GLOO})\nprint('rank', rank, 'up', flush=True)\nif rank: time.sleep(300)\ndist.barrier()",
        words=("--output", "all", "script.py"),
        signals=((r"rank 0 up.*rank 1 up|rank 1 up.*rank 0 up", signal.SIGINT),),
        expected=(r"rank 0 on \S+ .*s ago", r"rank 1 on \S+ .*s ago"),
        codes=(130,),
    ),
    Case(
        id="6c",
        name="a peer times out, rank 1 sleeps",
        text=f"from datetime import timedelta\n{_GLOO}, timeout=timedelta(seconds=4))\n"
        "if rank: time.sleep(100)\ndist.barrier()",
        expected=(r"Error: rank 0 on \S+ failed .*; rank 1 was still running",),
        absent="connection between ranks lost",
        codes=(1,),
    ),
    Case(
        id="6d",
        name="rank 1 ends with 0 early",
        text=f"{_GLOO})\nif rank: time.sleep(1); os._exit(0)\ndist.all_reduce(torch.ones(1))",
        expected=(r"connection between ranks lost; rank 0 .*; rank 1 had ended with exit code 0",),
        codes=(1,),
    ),
    Case(
        id="6e",
        name="a server of data refuses the connection",
        text="import urllib.request\nif rank: urllib.request.urlopen('http://127.0.0.1:9')\ntime.sleep(60)",
        expected=(r"Error: rank 1 on \S+ failed with exit code 1: urllib.error.URLError",),
        absent="connection between ranks lost",
        codes=(1,),
    ),
)
_STANDSTILL = Case(
    id="still",
    name="a script that prints nothing and uses no CPU for a minute is reported once, and ends well",
    text="print('rank', rank, 'waits', flush=True)\ntime.sleep(85 - 5 * rank); print('through')",
    expected=(
        r"no rank has printed anything or used CPU time for 60 s",
        r"rank 0 on \S+ .*s ago \(rank 0 waits\)",
        r"rank 1 on \S+ .*s ago \(rank 1 waits\)",
        "through",
    ),
    absent="(?s)no rank has printed.*no rank has printed",
)
_CHILDREN = Case(
    id="6i",
    name="children in the background end with the run",
    text="import subprocess\nsubprocess.Popen(['sleep', '3602']); print('left', flush=True)",
    expected=("left",),
)
_DAEMONS = replace(
    _CHILDREN,
    name="daemons in sessions of their own end with the run",
    text="import subprocess\nif os.fork() == 0:\n    os.setsid()\n"
    "    os.fork() or os.execvp('sleep', ['sleep', '3602'])\n    os._exit(0)\ntime.sleep(1); print('left', flush=True)",
)
_FAILING = replace(
    _DAEMONS,
    name="daemons end with a run that fails",
    text=f"{_DAEMONS.text}\nif rank: sys.exit(7)\ntime.sleep(60)",
    expected=(r"Error: rank 1 on \S+ failed with exit code 7",),
    codes=(1,),
)
_PROCESSES = (
    _CHILDREN,
    *on_each("here", *_MPIS, *_HOSTS, case=_DAEMONS),
    _FAILING,
    *on_each(*_HOSTS, case=replace(_FAILING, words=_ONE)),
    Case(
        id="6j",
        name="every rank leads a session, as under torchrun",
        text="assert os.getsid(0) == os.getpid()\ntry:\n    os.setpgid(0, 0)\n"
        "except PermissionError:\n    print('EPERM')",
        expected=("EPERM",),
    ),
)
_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('rank', rank, 'up', flush=True)\n"
_BOTH_UP = r"rank 0 up.*rank 1 up|rank 1 up.*rank 0 up"
_IGNORES = Case(
    id="6k",
    name="SIGTERM is ignored, Ctrl-C",
    text=f"{_DEAF}time.sleep(300)",
    words=("--grace", "4", "--output", "all", "script.py"),
    signals=((_BOTH_UP, signal.SIGINT),),
    expected=("SIGTERM",),
    codes=(130,),
)
_TWICE = replace(
    _IGNORES,
    name="SIGTERM is ignored, Ctrl-C twice",
    words=("--grace", "200", "--output", "all", "script.py"),
    signals=((_BOTH_UP, signal.SIGINT), ("SIGTERM", signal.SIGINT)),
)
_SAVES = Case(
    id="6q",
    name="Ctrl-C: time to save",
    text="def stop(*_):\n    os.write(1, b'rank %d saved\\n' % rank); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\nprint('rank', rank, 'up', flush=True)\nwhile True: time.sleep(0.05)",
    words=("--output", "all", "script.py"),
    signals=((_BOTH_UP, signal.SIGINT),),
    expected=("rank 0 saved", "rank 1 saved"),
    codes=(130,),
)
_SIGNALS = (
    Case(
        id="6k",
        name="SIGTERM is ignored, rank 1 fails",
        text=f"{_DEAF}time.sleep(1)\nif rank: sys.exit(4)\ntime.sleep(300)",
        words=("--grace", "4", "script.py"),
        expected=(r"Error: rank 1 on \S+ failed with exit code 4",),
        codes=(1,),
    ),
    _IGNORES,
    *on_each(*_HOSTS, case=replace(_IGNORES, words=("--nproc-per-node", "1", *_IGNORES.words))),
    *on_each("here", *_MPIS, case=_TWICE),
    *on_each(*_HOSTS, case=replace(_TWICE, words=("--nproc-per-node", "1", *_TWICE.words))),
    _SAVES,
    replace(_SAVES, name="Ctrl-C to the group: time to save", to_group=True),
    replace(_SAVES, name="SIGTERM: time to save", signals=((_BOTH_UP, signal.SIGTERM),)),
    replace(_SAVES, name="SIGHUP: time to save", signals=((_BOTH_UP, signal.SIGHUP),)),
)
_CONTROLLER = replace(
    _SAVES,
    id="6r",
    name="the controller is killed",
    text="print('rank', rank, 'up', flush=True)\ntime.sleep(300)",
    signals=((_BOTH_UP, signal.SIGKILL),),
    expected=(),
    codes=(-9,),
    gone_s=90,
)
_RESUMES = Case(
    id="6p",
    name="killed twice, starts again from its checkpoint",
    words=("--max-restarts", "3", "--output", "all", "script.py"),
    text=f"{_GLOO})\nfirst = int(open('step').read()) + 1 if os.path.exists('step') else 0\n"
    "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
    "print(f'rank {rank}, restart {count}, from step {first}', flush=True)\n"
    "for step in range(first, 16):\n    dist.all_reduce(torch.ones(1))\n"
    "    if rank == 0:\n        open('new', 'w').write(str(step)); os.replace('new', 'step')\n"
    "    dist.barrier()\n"
    "    if rank and step in (5, 12) and step >= first: os.kill(os.getpid(), 9)\n"
    "print('through', flush=True)\ndist.destroy_process_group()",
    expected=(
        "rank 0, restart 0, from step 0",
        "rank 1, restart 1, from step 6",
        "rank 1, restart 2, from step 13",
        "through",
    ),
)
_RESTARTS = (
    _RESUMES,
    replace(
        _RESUMES,
        name="killed twice, gives up after one restart",
        words=("--max-restarts", "1", "--output", "all", "script.py"),
        expected=("rank 1, restart 1, from step 6", r"Error: .*rank 1 on \S+ was killed by signal 9"),
        absent="through",
        codes=(1,),
    ),
)
_UNDER = (
    replace(_KILLED, id="6s", on="typed under torchrun", expected=("rank *: 1", r"Signal 9 \(SIGKILL\)")),
    replace(
        _KILLED,
        id="6s",
        name="rank 1 exits with 3",
        on="typed under Open MPI 5",
        text=f"{_GLOO})\nif rank: sys.exit(3)\ntime.sleep(100)",
        expected=("rank 1|PRTE|prterun",),
        codes=(1, 3, 134),
    ),
)
CASES = (
    *_FAILURES,
    _STANDSTILL,
    *_PROCESSES,
    *_SIGNALS,
    *_RESTARTS,
    *on_each("here", case=_CONTROLLER),
    replace(_CONTROLLER, on="ssh, 2 hosts", words=("--nproc-per-node", "1", *_CONTROLLER.words)),
    replace(_CONTROLLER, on="slurm, 2 nodes", words=("--nproc-per-node", "1", *_CONTROLLER.words)),
    *_UNDER,
)
