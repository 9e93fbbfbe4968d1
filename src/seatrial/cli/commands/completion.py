"""``seatrial completion``: the script by which a shell completes commands, options and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.cli.command import Command
from seatrial.environment import self_location
from seatrial.errors import RequestError
from seatrial.targets.option import Option

_SHELLS = ("bash", "zsh", "fish")


def options() -> Mapping[str, tuple[Option, ...]]:
    """Return the options by the heading under which help shows them."""
    shell = Option(flags=(), name="shell", help="bash, zsh or fish.", type=_SHELLS, metavar="SHELL", required=True)
    return {"Options": (shell,)}


def run(options: Mapping[str, Any], *, debug: bool) -> int:
    """Print the script; return the exit code."""
    if self_location.BUNDLE_PATH is not None:
        raise RequestError("completion: only an installed seatrial completes words; install it, such as with pipx.")
    from click.shell_completion import get_completion_class

    from seatrial.cli.click_app import cli

    kind = get_completion_class(options["shell"])
    assert kind is not None
    print(kind(cli, {}, "seatrial", "_SEATRIAL_COMPLETE").source(), flush=True)
    return 0


COMMAND = Command(
    name="completion",
    order=8,
    summary="complete commands and options in bash, zsh or fish",
    text="""Print the script by which SHELL completes commands, options and their values.

bash: eval "$(seatrial completion bash)" in ~/.bashrc. zsh: the same line with zsh, in ~/.zshrc, below compinit. fish:
seatrial completion fish > ~/.config/fish/completions/seatrial.fish
""",
    options=options,
    run=run,
)
