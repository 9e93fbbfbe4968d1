"""Loads the double of a CUDA device into each Python process that has this folder in its PYTHONPATH, if asked to."""

import os
import sys
from pathlib import Path

if os.environ.get("SEATRIAL_CUDA_DOUBLE"):
    # At the end: nothing of the tests may hide what a program imports.
    sys.path.append(str(Path(__file__).parents[2]))
    from cuda_double.importing import install_finder

    install_finder(os.environ["SEATRIAL_CUDA_DOUBLE"])
