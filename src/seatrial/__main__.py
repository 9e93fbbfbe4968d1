"""``python -m seatrial``, and the command ``seatrial``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C during its import ends the process as Ctrl-C does later: exit code 130."""
    try:
        from seatrial.cli.click_app import main as run_command_line
    except KeyboardInterrupt:
        sys.stderr.write("\nseatrial: interrupted.\n")
        sys.exit(130)
    run_command_line()


if __name__ == "__main__":
    main()
