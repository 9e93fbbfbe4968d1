"""The command line: click where seatrial is installed, argparse in the bundle, both from the same commands."""
