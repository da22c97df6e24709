"""`python -m repl_rl`, the same as `repl-rl`."""

import sys

from repl_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
