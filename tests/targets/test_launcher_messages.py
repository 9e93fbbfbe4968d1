"""Output of real launchers after an error, and the sentence made from it."""

from __future__ import annotations

import pytest

from seatrial.targets import launcher_messages
from seatrial.targets.launcher_messages import reason, reason_of_agent, refused

NO_SLOTS = """--------------------------------------------------------------------------
There are not enough slots available in the system to satisfy the 3
slots that were requested by the application:

  ./agent
"""
INTEL = """[mpiexec@vm] Error: Unable to run bstrap_proxy on node9 (pid 12634, exit code 65280)
[mpiexec@vm] Possible reasons:
[mpiexec@vm] 1. Host is unavailable. Please check that all hosts are available.
"""
KEY = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
runner@node1: Permission denied (publickey).
"""


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "ssh: Could not resolve hostname nosuch: Name or service not known\nORTE was unable to reliably start\n",
            "ssh: Could not resolve hostname nosuch: Name or service not known",
        ),
        (
            "Host key verification failed.\nORTE was unable to",
            "ssh: Host key verification failed; connect to each host",
        ),
        (KEY, "ssh: other users can read the private key"),
        (
            "runner@node1: Permission denied (publickey).\n",
            "ssh: runner@node1: Permission denied (publickey); `ssh HOST` must work",
        ),
        (NO_SLOTS, "there are not enough slots for the ranks"),
        (INTEL, "node9 is unreachable"),
        (
            "bash: line 1: /opt/m/orted: No such file\nbash: orted: command not found\n",
            "bash: orted: command not found;",
        ),
        ("[proxy:0@vm] HYDU_create_process: execvp error on file /x/python (No such file)", "a host has no /x/python;"),
        ("srun: error: Node failure on n1\n", "Node failure on n1"),
        ("all is well\n", ""),
        ("", ""),
    ],
)
def test_the_error_of_a_launcher_is_reported(output: str, words: str) -> None:
    assert reason(output).startswith(words)
    assert (reason(output) == "") == (words == "")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "noise\nseatrial agent: node 1 (node1) found no controller of its job at 10.0.0.1:5 (timed out).\n",
            "node 1 (node1) found no controller of its job at 10.0.0.1:5 (timed out)",
        ),
        (
            "seatrial agent: the launcher has made rank 3 number 3 of its host, not number 0; see that it heeds\n",
            "the launcher has made rank 3 number 3 of its host, not number 0; see that it heeds",
        ),
        (
            "Error: the bundle /x/seatrial.pyz cannot be read here (No such file or directory); all nodes must see it"
            " at the same path.\n",
            "a host cannot read the bundle; put --out on a file system that all hosts share",
        ),
        (
            "Error: the bundle /x/seatrial.pyz has the SHA-256 0a, and 0b was expected; start the run again.\n",
            "the bundle /x/seatrial.pyz has the SHA-256 0a, and 0b was expected; start the run again",
        ),
        ("agent: 1: /opt/none/python: not found\n", "a host has no /opt/none/python; name a Python"),
        ("agent: line 1: /opt/python: No such file or directory\n", "a host has no /opt/python; name a Python"),
        ("/usr/bin/env: \u2018py9\u2019: No such file or directory\n", "a host has no py9; name a Python"),
        ("0: /usr/bin/env: 'py9': No such file or directory\n", "a host has no py9; name a Python"),
        ("env: can't execute 'py9': No such file or directory\n", "a host has no py9; name a Python"),
    ],
)
def test_the_error_of_an_agent_takes_precedence(output: str, words: str) -> None:
    assert reason_of_agent(output).startswith(words)
    assert reason(f"ssh: something else\n{output}").startswith(words)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (NO_SLOTS, "there are not enough slots for the ranks; request fewer"),
        ('/usr/bin/mpirun: Error: unknown option "--foo"\n', """mpirun: "unknown option '--foo'"; see --mpi-arg"""),
        (
            "An unrecognized option was included on the mpirun command line:\n\n  Option: --foo\n",
            "mpirun: unknown option --foo; see --mpi-arg",
        ),
        ("[mpiexec@vm] match_arg (args.c:166): unrecognized argument foo", 'mpirun: "unrecognized argument foo";'),
        ("srun: unrecognized option '--foo'\n", """srun: "unrecognized option '--foo'"; see --slurm-arg and"""),
        ("sh: 1: exec: srun: not found", "srun was not found in PATH; run this command on a host where it is"),
        ("srun: error: Only allocated 1 nodes asked for 9\n", 'srun: "Only allocated 1 nodes asked for 9"; change'),
        (
            "srun: error: Unable to create step for job 10: Requested node configuration is not available\n",
            'srun: "Unable to create step for job 10: Requested node configuration is not available"; request',
        ),
        (
            "seatrial agent refuses: the license is over, type sh x\n",
            'an agent refuses: "the license is over, type sh x"',
        ),
        (
            "The MCA param orte_tmpdir_base was specified, which sets the base\n",
            "mpirun: orte_tmpdir_base is set in a file of settings that seatrial has not found",
        ),
        ("srun: error: Unable to create step for job 10: Unable to contact slurm controller\n", ""),
        ("srun: error: n1: task 1: Killed\nsrun: error: Node failure on n1\n", ""),
        ("ssh: Could not resolve hostname a\n", ""),
    ],
)
def test_a_refusal_is_distinguished_from_a_failure(output: str, words: str) -> None:
    assert refused(output).startswith(words)
    assert (refused(output) == "") == (words == "")


def test_a_running_launcher_is_only_judged_by_its_agents() -> None:
    assert reason_of_agent("ssh: a warning\nsrun: error: something\n") == ""


def test_the_last_lines_that_say_something_count() -> None:
    """A host may fill the output with lines that say nothing."""
    error = "seatrial agent: node 2 (c) found no controller"
    assert reason_of_agent("\n" * 60_000 + error + "\n" * 60_000) == "node 2 (c) found no controller"
    assert reason_of_agent(f"{error}\n" + "noise\n" * 199) == "node 2 (c) found no controller"
    assert reason_of_agent(f"{error}\n" + "noise\n" * 200) == ""


@pytest.mark.parametrize("word", ["env: '", "env: \u2018", "Permission denied (", "hydra_", "orted: "])
def test_no_line_of_a_host_takes_long(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host repeats the beginning of a known error; with a search from each of them this would take hours."""
    monkeypatch.setattr(launcher_messages, "_MOST_LINE_CHARS", 1 << 21)
    assert reason(word * ((1 << 21) // len(word))) == ""
