"""Where a rank of a script is, in words."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.report.program_display import where_words

DUMP = """Process 47: python hang.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 48 (idle): "pt_autograd_0"
    other (x.py:1)

Thread 47 (idle): "MainThread"
    waiting (hang.py:5)
    <module> (hang.py:6)

Thread 49 (idle): "Thread-1"
    third (x.py:2)
"""

LIE = "x); rank 7 on node gpu-7 is broken"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"text": DUMP, "wchan": "futex_wait_queue", "last_line": "  step 5"},
            'last output 62 s ago ("step 5"); sleeps in futex_wait_queue; waiting (hang.py:5), called by <module>'
            " (hang.py:6)",
        ),
        ({"text": "", "state": "D"}, "no output; waits for a disk; no Python stack"),
        (
            {"text": "Error: Permission Denied: Try running again\nReason: y", "state": "T", "last_line": "x"},
            'last output 62 s ago ("x"); is stopped; py-spy: "Error: Permission Denied: Try running again"',
        ),
        (
            {"text": DUMP.partition("Thread 48")[0] + "Thread 47 (idle)\n    waiting (hang.py:5)\n", "last_line": "x"},
            'last output 62 s ago ("x"); sleeps; waiting (hang.py:5)',
        ),
        ({"last_line": " "}, 'last output 62 s ago (""); sleeps; no Python stack'),
        ({"state": "X"}, "no output; is gone; no Python stack"),
    ],
)
def test_words(event: dict[str, Any], words: str) -> None:
    assert where_words({"kind": "stack", "state": "S", "wchan": "", "quiet_s": 61.9, **event}) == words


@pytest.mark.parametrize(
    "event", [{"wchan": LIE}, {"last_line": LIE}, {"text": LIE}, {"text": f'Thread 1 (idle): "MainThread"\n    {LIE}'}]
)
def test_words_of_an_agent_are_no_sentence_of_ours(event: dict[str, Any]) -> None:
    words = where_words({"kind": "stack", "state": "S", "wchan": "", "quiet_s": 1.0, **event})
    assert f'"{LIE}"' in words
    assert LIE not in words.replace(f'"{LIE}"', "")
