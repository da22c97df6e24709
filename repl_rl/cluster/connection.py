"""A process's connection to a Ray cluster, and the check of its machines before anything is started on them."""

import importlib.util
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from repl_rl import __version__
from repl_rl.config import ClusterConfig
from repl_rl.errors import ConfigError, DependencyError

_LISTENER_S = 10.0
_PROBE_S = 120.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, alive when the cluster was last asked."""

    id: str
    address: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a machine has, by `_make_probe`; or, under `error`, why it did not answer."""

    node: Node
    facts: Mapping[str, Any]

    @property
    def problem(self) -> str:
        """Why sessions can't run there; empty if they can."""
        facts = self.facts
        if "error" in facts:
            return str(facts["error"])
        if facts["repl_rl"] is None:
            return (
                f"repl_rl can't be imported there ({facts['missing']}); install it, or name it in cluster.runtime_env "
                "({pip: [repl-rl]})"
            )
        if facts["repl_rl"] != __version__:
            return f"it has repl_rl {facts['repl_rl']}, and this machine {__version__}; install the same on both"
        if "sandbox" in facts:
            return str(facts["sandbox"])
        if "weights_folder" in facts:
            return (
                f"engine.weights_folder {facts['weights_folder']} isn't there; name a folder that all machines share "
                "under the same path"
            )
        if "model" in facts:
            return f"the model {facts['model']} isn't there; copy it, or name a path that all machines share"
        return ""


def alive_nodes() -> list[Node]:
    """The machines that are alive, the one with this process first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for entry in ray.nodes():
        if entry["Alive"]:
            nodes.append(Node(entry["NodeID"], entry["NodeManagerAddress"], entry["Resources"]))
    return sorted(nodes, key=lambda node: (node.id != here, node.id))


def nodes_for(wanted: Mapping[str, float], count: int | None, what: str) -> list[Node]:
    """A node for each of `count` processes that need `wanted`, evenly; for `None`, each node that has it once.

    Raises ConfigError if the cluster doesn't have enough, whatever else runs there.
    """
    nodes = alive_nodes()
    rounds = 1 if count is None else count
    chosen = []
    for turn in range(rounds):  # one process on each node that still has room, before any gets another one
        chosen += [node for node in nodes if turn < _capacity(node, wanted)]
    chosen = chosen[:count]
    if len(chosen) < (count or 1):
        have = "; ".join(f"{node.address}: {_amounts(node.resources)}" for node in nodes)
        raise ConfigError(
            f"cluster: {count or 1} {what} with {_amounts(wanted)} each don't fit into this cluster, which has "
            f"room for {len(chosen)} ({have}); ask for less, or add machines"
        )
    return chosen


def findings(nodes: Sequence[Node], arguments: Mapping[str, Any]) -> list[Finding]:
    """Ask machines what they have (`_make_probe`), at the same time."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(_make_probe())
    answers = {}
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        task = probe.options(num_cpus=0, scheduling_strategy=on_node, max_retries=0)
        answers[node.id] = task.remote(dict(arguments))
    # The limit is on all of them together, so that several silent machines take no longer than one.
    ray.wait(list(answers.values()), num_returns=len(answers), timeout=_PROBE_S)
    results = []
    for node in nodes:
        try:
            facts = ray.get(answers[node.id], timeout=0)
        except ray.exceptions.GetTimeoutError:
            facts = {"error": f"no answer within {_PROBE_S:g} s"}
        except ray.exceptions.RayError as error:
            facts = {"error": str(error).strip().splitlines()[-1]}
        results.append(Finding(node, facts))
    return results


def require_usable(nodes: Sequence[Node], arguments: Mapping[str, Any]) -> None:
    """Raises ConfigError that names each machine that lacks something, and what."""
    machines = list({node.id: node for node in nodes}.values())  # a node is named once for each process on it
    unusable = [finding for finding in findings(machines, arguments) if finding.problem]
    if unusable:
        reasons = "\n".join(f"  {finding.node.address}: {finding.problem}" for finding in unusable)
        raise ConfigError(f"{len(unusable)} of {len(machines)} machines of the cluster can't be used:\n{reasons}")


@contextmanager
def connect(config: ClusterConfig) -> Iterator[None]:
    """Connect to the cluster of a config, unless this process is connected already. Raises DependencyError without
    Ray, and ConfigError if the cluster can't be reached."""
    if importlib.util.find_spec("ray") is None:
        raise DependencyError("the section cluster needs Ray; in the checkout, bring it with: pip install -e '.[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if config.runtime_env:
        options["runtime_env"] = config.runtime_env
    if config.address == "local":
        options["include_dashboard"] = False
    keep_token_private(config.address == "local")
    try:
        host, _, port = config.address.rpartition(":")
        if host:  # tried here first, because Ray would go on trying for minutes
            socket.create_connection((host, int(port)), timeout=_LISTENER_S).close()
        ray.init(config.address, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"no Ray cluster can be reached at cluster.address {config.address!r}: {error}; start one with\n"
            "  ray start --head\nand on the other machines what that prints, or take address: local"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def keep_token_private(will_make: bool) -> None:
    """Let only this user read ~/.ray/auth_token: whoever can read it can run code as this user. Ray makes it, readable
    for all, when it starts a cluster; if it will (`will_make`), the file is made here first."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    file = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        if will_make and not file.exists():
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(32), encoding="ascii")
        file.chmod(0o600)


def actor_at(node: Node, kind: type, resources: Mapping[str, float], **options: Any) -> Any:
    """A Ray actor class whose instances set `resources` aside on this machine, or on another one once this is lost.
    Ray starts an instance again whenever it ends."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    option_names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    amounts: dict[str, float] = {"num_cpus": 0}  # Ray's own default is 1
    custom = {}
    for name, amount in resources.items():
        if name in option_names:
            amounts[option_names[name]] = amount
        else:
            custom[name] = amount
    return ray.remote(kind).options(
        **amounts,
        resources=custom,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.id, soft=True),
        max_restarts=-1,
        **options,
    )


def _capacity(node: Node, needs: Mapping[str, float]) -> float:
    """How many processes with these needs a node has room for, if nothing else runs there."""
    return min((node.resources.get(name, 0.0) // amount for name, amount in needs.items() if amount), default=inf)


def _make_probe() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that runs on a machine of the cluster, and says what the machine has.

    The machine may have no repl_rl. A function made in here is sent as code, not by its name.
    """

    def probe(arguments: dict[str, Any]) -> dict[str, Any]:
        import platform

        facts: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count(), "repl_rl": None}
        try:
            import repl_rl
            from repl_rl.kernel.memory import available_mb
            from repl_rl.kernel.pool import require_backend
        except ImportError as error:
            return facts | {"missing": str(error)}
        facts |= {"repl_rl": repl_rl.__version__, "where": os.path.dirname(repl_rl.__file__)}
        if "backend" in arguments:
            try:
                require_backend(arguments["backend"], arguments["sandbox"])
            except Exception as error:  # noqa: BLE001 - told to the other side
                facts["sandbox"] = str(error)
        facts["memory_mb"] = int(available_mb())
        for name in ("weights_folder", "model"):
            path = arguments.get(name)
            if path and not os.path.exists(path):
                facts[name] = path
        return facts

    return probe


def _amounts(resources: Mapping[str, float]) -> str:
    texts = []
    for name, amount in resources.items():
        if name == "memory":
            texts.append(f"{amount / 2**30:.0f} GiB")
        elif not name.startswith(("node:", "object_store")):  # Ray's own, which nobody asks for
            texts.append(f"{amount:g} {name}")
    return ", ".join(texts)
