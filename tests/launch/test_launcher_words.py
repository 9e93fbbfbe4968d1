"""What launchers printed when something was wrong, as they printed it, and the sentence that comes of it."""

from __future__ import annotations

import pytest

from seatrial.launch.launcher_words import reason, reason_of_agent

NO_SLOTS = """--------------------------------------------------------------------------
There are not enough slots available in the system to satisfy the 3
slots that were requested by the application:

  ./agent
"""
NO_FILE_4 = """--------------------------------------------------------------------------
mpirun was unable to launch the specified application as it could not access
or execute an executable:

Executable: /opt/none/python
Node: node1

while attempting to start process rank 0.
--------------------------------------------------------------------------
2 total processes failed to start
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
        ("Host key verification failed.\nORTE was unable to", "ssh: Host key verification failed; log in to each host"),
        (KEY, "ssh: others can read the private key"),
        (
            "runner@node1: Permission denied (publickey).\n",
            "ssh: runner@node1: Permission denied (publickey); each host",
        ),
        (NO_SLOTS, "there are not enough slots for so many ranks"),
        (NO_FILE_4, "a host has no /opt/none/python; name a Python that all hosts have with --python"),
        (INTEL, "node9 cannot be reached"),
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
def test_a_launcher_says_why(output: str, words: str) -> None:
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
            "the launcher has made rank 3 number 3 of its host, not number 0\n",
            "the launcher has made rank 3 number 3 of its host, not number 0; see that it heeds the hosts",
        ),
        (
            "/usr/bin/python3: Error while finding module specification for 'seatrial.agent.main'"
            " (ModuleNotFoundError: No module named 'seatrial')",
            "a host does not see our code; put --out on a file system that all hosts share",
        ),
        ("ModuleNotFoundError: No module named 'seatrial'", "a host does not see our code; put --out"),
    ],
)
def test_what_an_agent_says_comes_before_what_its_launcher_says_of_it(output: str, words: str) -> None:
    assert reason_of_agent(output).startswith(words)
    assert reason(f"ssh: something else\n{output}").startswith(words)


def test_only_agents_speak_while_the_launcher_goes_on() -> None:
    assert reason_of_agent("ssh: a warning\nsrun: error: something\n") == ""
