"""Starts the kernel program. Its argument is the number of the descriptor that holds the boot record (program.py)."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from program import main

main(int(sys.argv[1]))
