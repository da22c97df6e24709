"""What runs in the container: `repl-rl serve openenv` for every address, with the arguments of its command.

It needs the package's extra `server`.
"""

import sys

from repl_rl.cli import main as repl_rl
from repl_rl.integrations.openenv import make_app

app = make_app()
"""For `uvicorn server.app:app`. It starts no interpreter before the first reset, and has no problems of its own."""


def main() -> None:
    sys.exit(repl_rl(["serve", "openenv", "--host", "0.0.0.0", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
