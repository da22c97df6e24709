"""`repl-rl serve PROTOCOL`: its arguments, and what it starts. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Task


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add a command for each protocol."""
    protocols = parser.add_subparsers(required=True, metavar="PROTOCOL")
    openenv = protocols.add_parser("openenv", help="an OpenEnv server: an interpreter for each client")
    openenv.add_argument("config", nargs="?", help=f"whose kernels and problems to serve: {config_help}")
    openenv.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    openenv.add_argument(
        "--problems", type=Path, metavar="FILE.jsonl", help="serve these, with question and answer, as the split train"
    )
    openenv.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)")
    openenv.add_argument("--port", type=int, default=8000, metavar="N", help="(default: 8000; 0 takes a free one)")
    openenv.add_argument("--size", type=int, metavar="N", help="sessions at once (default: kernel.size)")
    openenv.add_argument(
        "--idle-s", type=float, default=3600.0, metavar="S", help="unused sessions end after this (default: 3600)"
    )
    openenv.set_defaults(command=serve_openenv)


def serve_openenv(options: argparse.Namespace, console: Console) -> int:
    """Serve until Ctrl-C. Raises a ReplRLError before anything is served, if no interpreter can run or no port is free.

    Problems are served if `--problems`, a config or an override says which.
    """
    from repl_rl.config import load_config, parse_config
    from repl_rl.tasks import load_splits, require_gradable

    if not options.idle_s > 0:
        raise ConfigError(f"--idle-s {options.idle_s:g}: give more than 0 seconds")
    overrides = tuple(options.set)
    if options.size is not None:
        overrides += (f"kernel.size={options.size}",)
    config = parse_config({}, overrides) if options.config is None else load_config(options.config, overrides)
    if config.tools.functions or config.tools.mcp or config.environment is not None:
        raise ConfigError("tools and environments are not served; take tools and environment out")
    from repl_rl.integrations import openenv
    from repl_rl.integrations.shared import close_shared_kernels, read_problems, shared_kernels

    problems: dict[str, list[Task]] = {}
    if options.problems is not None:
        problems["train"] = read_problems(options.problems)
        require_gradable(problems["train"])
    elif options.config is not None or any(override.startswith("tasks") for override in overrides):
        problems["train"], problems["heldout"] = load_splits(
            config.tasks, ("train", config.seed, config.tasks.train), ("heldout", 0, config.eval.problems)
        )
    app = openenv.make_app(
        config.kernel, problems, idle_s=options.idle_s, max_output_chars=config.dialect.max_output_chars
    )
    with openenv.listen(options.host, options.port) as listener:
        try:
            shared_kernels(config.kernel)
            host, port = listener.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            counts = [f"{len(tasks)} {split} problems" for split, tasks in problems.items()]
            served = ", ".join([f"{config.kernel.size} interpreters", *counts])
            console.print(f"{address} serves {served}; Ctrl-C ends it", highlight=False, soft_wrap=True)
            openenv.serve(app, listener)
        finally:
            close_shared_kernels()
    return 0
