"""Starts the kernel program. Its arguments: the number of the descriptor that holds the boot record (see program.py)."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from program import main  # noqa: E402 - found through the path set above

main(int(sys.argv[1]))
