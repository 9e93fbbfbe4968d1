"""``python -m seatrial``, and the command ``seatrial``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The command line; Ctrl-C while it is still being imported ends it as Ctrl-C does later."""
    try:
        from seatrial.cli import main as carry_out
    except KeyboardInterrupt:
        sys.stderr.write("\nseatrial: stopped.\n")
        sys.exit(130)
    carry_out()


if __name__ == "__main__":
    main()
