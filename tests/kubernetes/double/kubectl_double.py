"""A double of kubectl: it sends its arguments to the double of a cluster in the folder KUBECTL_DOUBLE_FOLDER.

Without a cluster at the other end (``server.py``), or when it is silent for ``--request-timeout``, it says what kubectl
says. Standard library only; it imports nothing of ours, to start as fast as it can.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys

AT_ONCE = "KUBECTL_DOUBLE_AT_ONCE"
"""Set for the calls of a test, which need not be as slow as real ones."""
_NO_ANSWER = "(Client.Timeout exceeded while awaiting headers)"


def main(words: list[str]) -> int:
    """The exit code."""
    if {"config", "view", "--minify"}.issubset(words):
        # It reads a file, and asks no server.
        cluster = {"name": "double", "cluster": {"server": "https://double.example"}}
        print(json.dumps({"current-context": "double", "clusters": [cluster], "contexts": []}))
        return 0
    place = os.path.join(os.environ["KUBECTL_DOUBLE_FOLDER"], "api.sock")
    stdin = sys.stdin.read() if "-" in words else ""
    timeout_s = _timeout_s(words)
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(place)
        except OSError as error:
            sys.stderr.write(f"Unable to connect to the server: dial unix {place}: {error.strerror}\n")
            return 1
        link.settimeout(timeout_s)
        link.sendall(json.dumps({"argv": words, "stdin": stdin, "at_once": AT_ONCE in os.environ}).encode() + b"\n")
        try:
            for line in link.makefile("rb"):
                stream, text = json.loads(line)
                if stream == "code":
                    return int(text)
                out = sys.stdout if stream == "out" else sys.stderr
                out.write(text)
                out.flush()
        except TimeoutError:
            sys.stderr.write(f"Unable to connect to the server: net/http: request canceled {_NO_ANSWER}\n")
            return 1
    sys.stderr.write("error: unexpected EOF\n")
    return 1


def _timeout_s(words: list[str]) -> float | None:
    text = " ".join(words)
    match = re.search(r"--request-timeout[ =]([0-9]+)(m?s|m)?", text)
    if match is None or match[1] == "0":
        return None
    return int(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}[match[2]]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
