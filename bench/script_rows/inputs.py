"""Cases 6f to 6h, 6l to 6o, 6t and the variables: what goes into a script, and what comes out of it."""

from __future__ import annotations

from dataclasses import replace

from script_rows.case import Case, on_each

_VARIABLES = Case(
    id="variables",
    name="torchrun's variables, and nothing of ours",
    words=("--nproc-per-node", "2", "--output", "all", "script.py"),
    text="names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE"
    " ROLE_NAME TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCH_NCCL_ASYNC_ERROR_HANDLING'.split()\n"
    "values = [os.environ[name] for name in names]\n"
    "ours = sorted(name for name in os.environ if name.startswith('SEATRIAL_') and name != 'SEATRIAL_TEST_RUN')\n"
    "slurm = {os.environ.get('SLURM_PROCID', str(rank)), os.environ['RANK']}\n"
    "print('ours', ours, 'torchelastic', 'TORCHELASTIC_USE_AGENT_STORE' in os.environ,"
    " bool(os.environ['TORCHELASTIC_RUN_ID']), 'slurm', len(slurm), *values)",
    expected=(
        r"ours \[\] torchelastic False True slurm 1 0 0 4 2 0 2 0 4 default 0 0 1",
        r"ours \[\] torchelastic False True slurm 1 3 1 4 2 1 2 3 4 default 0 0 1",
    ),
)
_BIG = Case(
    id="6f",
    name="200 MB of output",
    words=("--output", "rank0", "script.py"),
    text="line = 'x' * 99 + '\\n'\nfor _ in range(20): sys.stdout.write(line * 100_000)\nprint('end')",
    expected=("end",),
    log_bytes=200_000_000,
)
_STREAMS = (
    _BIG,
    replace(_BIG, name="one line of 200 MB", text="sys.stdout.write('x' * 200_000_000 + '\\nend\\n')"),
    replace(_BIG, name="200 MB into head -1", on="piped into head", expected=("x",)),
    Case(
        id="6g",
        name="binary, escape codes, NUL, invalid UTF-8",
        text="os.write(1, b'\\x1b[2J\\x1b]0;title\\x07 \\x00 \\xff\\xfe \\x1b[32mgreen\\x1b[0m\\n'); print('shown')",
        expected=("shown", r"\\x1b\[2J", r"\\x00"),
        absent="[\x00\x1b\x07]",
    ),
    Case(
        id="6g",
        name="colors into a pipe that asks for them",
        env={"FORCE_COLOR": "1"},
        text="print('\\x1b[32mgreen\\x1b[0m \\x1b[2J')",
        expected=("\x1b\\[32mgreen\x1b\\[0m",),
        absent="\x1b\\[2J",
    ),
    Case(
        id="6h",
        name="3,000 lines at once",
        text="print('\\n'.join(f'line {n}' for n in range(3000)))",
        expected=(r"^line 0$", r"^line 1500$", r"^line 2999$"),
    ),
    Case(id="6h", name="a line without an end", text="sys.stdout.write('no end')", expected=("no end",)),
    Case(
        id="6h",
        name="a progress bar of tqdm",
        text="from tqdm import tqdm\nfor _ in tqdm(range(20)): time.sleep(0.02)",
        expected=("20/20",),
        absent="\r",
        needs=("frameworks",),
    ),
    Case(
        id="6h",
        name="16 ranks",
        words=("--nproc-per-node", "16", "--oversubscribe", "--output", "all", "script.py"),
        text="print('I am', rank)",
        expected=tuple(rf"\[rank +{rank}\] I am {rank}$" for rank in range(16)),
    ),
    Case(
        id="6h",
        name="a closed standard output",
        text="print('first', flush=True); os.close(1); time.sleep(1); sys.stdout = None",
        expected=("first",),
    ),
    Case(
        id="6l",
        name="standard input is empty",
        words=("--output", "all", "script.py"),
        text="print(rank, repr(sys.stdin.read()))",
        expected=("0 ''", "1 ''"),
    ),
)
_WORDS = ("$HOME * ' \"", "new\nline", "é", "", '{"a": {rank}}', r"\n %d", "--", "--nproc-per-node", "-x", "~")
_RIGHT = [word.replace("{rank}", "0") for word in _WORDS]
_QUOTED = "a 'b' \"c\" $HOME"
_UNCHANGED = Case(
    id="6m",
    name="names, arguments and variables with spaces, quotes and newlines",
    file="my 'own' \"script\" $1.py",
    words=("--env", f"QUOTED={_QUOTED}", "my 'own' \"script\" $1.py", *_WORDS),
    text=f"right = {_RIGHT!r}\nif rank == 0: print('unchanged' if sys.argv[1:] == right else sys.argv[1:],"
    f" os.environ['QUOTED'] == {_QUOTED!r})",
    expected=("unchanged True",),
)
_ARGUMENTS = (
    *on_each(
        *("here", "ssh, 2 hosts", "slurm, 2 nodes", "--on Open MPI 5", "--on Open MPI 4", "--on MPICH"),
        case=_UNCHANGED,
    ),
    Case(
        id="6n",
        name="arguments that are named as ours go to the script",
        words=("script.py", "--on", "ssh", "--max-restarts=2", "--help", "--", "-m"),
        text="print(sys.argv[1:])",
        expected=(r"\['--on', 'ssh', '--max-restarts=2', '--help', '--', '-m'\]",),
    ),
)
_OTHER_FILES = (
    Case(
        id="6o",
        name="a script whose name begins with a dash",
        words=("--", "-dash.py"),
        file="-dash.py",
        text="print('dash', rank)",
        expected=("dash 0",),
    ),
    Case(
        id="6o",
        name="a program without --no-python",
        words=("/bin/true",),
        codes=(2,),
        expected=("/bin/true.*no-python",),
    ),
    Case(
        id="6o",
        name="a shell script without --no-python",
        files={"ok.sh": "#!/bin/sh\necho ok\n"},
        words=("ok.sh",),
        codes=(2,),
        expected=("is a script of /bin/sh, not of Python; add --no-python",),
    ),
    Case(
        id="6o",
        name="a shell script",
        files={"ok.sh": "#!/bin/sh\necho ok $RANK\n"},
        words=("--no-python", "./ok.sh"),
        expected=("ok 0",),
    ),
    Case(
        id="6o",
        name="a program that is not executable",
        files={"ok": "echo ok\n"},
        words=("--no-python", "./ok"),
        codes=(2,),
        expected=("Error: .*ok.*execut",),
    ),
    Case(
        id="6o",
        name="a program of the PATH",
        words=("--no-python", "echo", "{rank}", "of 2"),
        expected=("0 of 2",),
    ),
    Case(id="6o", name="a missing script", words=("none.py",), codes=(2,), expected=("none.py: no such script",)),
    Case(
        id="6o",
        name="a missing module",
        words=("-m", "none_such"),
        codes=(1,),
        expected=(r"Error: rank [01] on \S+ failed with exit code 1: .*No module named none_such",),
    ),
    Case(
        id="6o", name="a folder", words=(".",), codes=(1,), expected=("Error: rank .* can't find '__main__' module in",)
    ),
    Case(
        id="6o",
        name="torchrun's --nnodes",
        words=("--nnodes=2", "--nproc-per-node=1", "script.py"),
        text="print('node', os.environ['GROUP_RANK'])",
        expected=("2 processes on this machine as 2 nodes", "node 0"),
    ),
)
_SEVERAL = (
    Case(
        id="6t",
        name="three at once",
        text="import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nx = torch.ones(1)\n"
        "dist.all_reduce(x)\nprint('sum', int(x), flush=True)\ndist.destroy_process_group()",
        at_once=3,
        expected=("sum 2",),
    ),
    Case(
        id="6t",
        name="--out that cannot be written",
        words=("--out", "/proc/none", "script.py"),
        codes=(2,),
        expected=("Error: .*/proc/none",),
    ),
    Case(
        id="6t",
        name="in an allocation",
        on="salloc",
        words=("--nproc-per-node", "1", "--output", "all", "script.py"),
        text="print('rank', rank, 'of', os.environ['WORLD_SIZE'])",
        expected=("rank 0 of 2", "rank 1 of 2"),
    ),
    Case(
        id="minor 5",
        name="the name of the master does not resolve",
        on="typed under srun, no MASTER_ADDR",
        text="print('begun')",
        codes=(1, 2, 3),
        expected=("n0",),
        absent="begun",
    ),
    *on_each(
        *("typed under Open MPI 5", "typed under MPICH"),
        case=Case(
            id="minor 5",
            name="a MASTER_ADDR that does not resolve",
            env={"MASTER_ADDR": "node..0"},
            text="print('begun')",
            codes=(1, 2),
            expected=("Error: MASTER_ADDR=node..0 has no address on",),
            absent="begun",
        ),
    ),
    Case(
        id="minor 5",
        name="Ctrl-C while a job of Slurm waits in the queue",
        on="slurm, 2 nodes",
        test="tests/launchers/test_on_slurm.py::test_ctrl_c_in_the_queue_takes_the_job_back",
    ),
)
CASES = (
    *on_each("here, 2 nodes", "ssh, 2 hosts", "slurm, 2 nodes", case=_VARIABLES),
    *_STREAMS,
    *_ARGUMENTS,
    *_OTHER_FILES,
    *_SEVERAL,
)
