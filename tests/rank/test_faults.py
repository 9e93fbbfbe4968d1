"""Planted faults: parsed strictly, and carried out for real in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from seatrial.errors import RequestError
from seatrial.rank.faults import KINDS, Fault, parse_fault, parse_faults, strike


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill@training:3", Fault(kind="kill", check="training", phase="", rank=3)),
        ("hang@collectives/all_reduce 8 B:0", Fault(kind="hang", check="collectives", phase="all_reduce 8 B", rank=0)),
        ("agent-stop@compute/a:b:12", Fault(kind="agent-stop", check="compute", phase="a:b", rank=12)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kill",
        "kill@training",
        "kill@training:",
        "kill@training:x",
        "kill@training:-1",
        "burn@training:1",
        "kill@:1",
    ],
)
def test_what_is_no_fault_is_refused_with_the_kinds_there_are(text: str) -> None:
    with pytest.raises(RequestError, match="agent-kill") as refused:
        parse_fault(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["kill@training:2", "kill@memory:1"])
def test_a_fault_that_would_never_strike_is_refused(text: str) -> None:
    """Or else a drill with a typing error ends in a PASS, as if the fault had not been found."""
    assert len(parse_faults(("kill@training:1", "hang@bootstrap:0"), 2, ("bootstrap", "training"))) == 2
    words = rf"'{text}' \(SEATRIAL_PLANT\) .* ranks 0 to 1, and the requested checks of ranks are bootstrap, training\."
    with pytest.raises(RequestError, match=words):
        parse_faults(("kill@training:1", text), 2, ("bootstrap", "training"))


@pytest.mark.parametrize(
    ("planted", "rank", "check", "phase", "struck"),
    [
        ("raise@training:1", 1, "training", None, True),
        ("raise@training:1", 0, "training", None, False),
        ("raise@training:1", 1, "compute", None, False),
        ("raise@training:1", 1, "training", "step 1", False),
        ("raise@training/step 1:1", 1, "training", "step 12 backward", True),
        ("raise@training/step 1:1", 1, "training", "before step 1", False),
        ("raise@training/step 1:1", 1, "training", None, False),
    ],
)
def test_it_strikes_where_it_was_planted_and_nowhere_else(
    planted: str, rank: int, check: str, phase: str | None, struck: bool
) -> None:
    if struck:
        with pytest.raises(KeyError, match="planted"):
            strike([parse_fault(planted)], rank, check, phase)
    else:
        strike([parse_fault(planted)], rank, check, phase)


def _strike_in_a_process(*kinds: str) -> subprocess.Popen[str]:
    code = (
        "from seatrial.rank.faults import parse_fault, strike\n"
        "from seatrial.worker.failures import cause_of\n"
        f"for kind in {kinds}:\n"
        "    try: strike([parse_fault(f'{kind}@compute:0')], 0, 'compute', None)\n"
        "    except Exception as error: print(cause_of(error))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("kind", "code"), [("kill", -signal.SIGKILL), ("term", -signal.SIGTERM), ("exit", 0)])
def test_a_rank_that_goes(kind: str, code: int) -> None:
    process = _strike_in_a_process(kind)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == code


def test_a_rank_that_stops() -> None:
    process = _strike_in_a_process("stop")
    seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert seen is not None
    assert seen.si_status == signal.SIGSTOP
    process.kill()
    process.communicate()


def test_a_planted_error_has_the_right_cause() -> None:
    """One process for all: to load torch takes longest."""
    output, _ = _strike_in_a_process("raise", "device", "memory").communicate(timeout=50)
    assert output.split() == ["own", "device", "memory"]


def test_what_is_spoiled_is_one_element() -> None:
    """One process for all: to load torch takes longest. The last gradient is of a layer made after the fault."""
    spoiled = {
        "flip": "next(model.parameters()).detach()",
        "flip-product": "torch.mm(ones, ones)",
        "flip-gradient": "torch.cat((gradient(model), gradient(torch.nn.Linear(3, 3))))",
    }
    code = (
        "import torch\n"
        "from seatrial.rank.faults import parse_fault, strike\n"
        "model, ones = torch.nn.Linear(3, 3), torch.ones(3, 3)\n"
        "def gradient(layer): return torch.autograd.grad(layer(ones).sum(), layer.weight)[0]\n"
    )
    for kind, made in spoiled.items():
        code += (
            f"before = {made}.clone()\n"
            f"strike([parse_fault('{kind}@compute:0')], 0, 'compute', None)\n"
            f"print(int((before != {made}).sum()))\n"
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "1\n1\n2\n"


def test_a_slow_product_is_the_same_product_computed_ten_times() -> None:
    code = (
        "import torch\n"
        "from seatrial.rank.faults import parse_fault, strike\n"
        "calls, multiply, ones = [], torch.mm, torch.ones(3, 3)\n"
        "torch.mm = lambda *operands: calls.append(1) or multiply(*operands)\n"
        "strike([parse_fault('slow-product@compute:0')], 0, 'compute', None)\n"
        "product = torch.mm(ones, ones)\n"
        "print(len(calls), bool((product == 3).all()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "10 True\n"


def test_each_kind_does_something() -> None:
    done = {"kill", "term", "exit", "stop", "raise", "device", "memory"}
    done |= {"flip", "flip-product", "flip-gradient", "slow-product"}
    # These wait for an hour, or need an agent: tests of the agent and of whole trials plant them.
    assert set(KINDS) - done == {"hang", "agent-kill", "agent-stop"}
