"""What is found out about a cluster before anything is started there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from repl_rl import __version__
from repl_rl.cluster import connect, replicas
from repl_rl.cluster.connection import Finding, Node, alive_nodes, findings, keep_token_private, require_usable
from repl_rl.config import ClusterConfig, parse_config
from repl_rl.errors import ConfigError, DependencyError


@pytest.mark.more
@pytest.mark.usefixtures("connection")
def test_machines_say_what_they_have() -> None:
    nodes = alive_nodes()
    assert len(nodes) == 3
    found = findings(nodes, {"backend": "fork", "sandbox": "bwrap", "model": "/nowhere"})
    assert [finding.facts["repl_rl"] for finding in found] == [__version__] * 3
    assert all("the model /nowhere isn't there" in finding.problem for finding in found)
    with pytest.raises(
        ConfigError, match=r"3 of 3 machines of the cluster can't be used:\n.*: engine.weights_folder /no isn't there"
    ):
        require_usable(nodes, {"backend": "fork", "sandbox": "bwrap", "weights_folder": "/no"})


@pytest.mark.parametrize("folder", ["~/shared/weights", "weights"])
def test_all_machines_look_for_the_same_weights_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a home and a working folder of its own."""
    asked: list[dict[str, str | None]] = []

    def refuse(nodes: list[Node], needs: dict[str, str | None]) -> None:
        asked.append(needs)
        raise ConfigError("none can be used")

    node = Node("a", "1.2.3.4", {})
    monkeypatch.setattr(replicas, "nodes_for", lambda *_: [node])
    monkeypatch.setattr(replicas, "alive_nodes", lambda: [node])
    monkeypatch.setattr(replicas, "require_usable", refuse)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    config = parse_config({"cluster": {"replicas": 1}, "engine": {"weights_folder": folder}})
    with pytest.raises(ConfigError, match="none can be used"), replicas.open_replicas(config, "some/model"):
        pass
    made = tmp_path / folder.replace("~", "home")
    assert asked == [{"weights_folder": str(made), "model": "some/model"}]
    assert made.is_dir()


@pytest.mark.parametrize("will_make", [True, False])
def test_rays_token_is_its_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, will_make: bool) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / ".ray" / "auth_token"
    keep_token_private(will_make)
    assert token.exists() is will_make  # a cluster that others have started may ask for none
    token.parent.mkdir(exist_ok=True)
    if will_make:
        assert len(token.read_text()) == 64
        assert token.stat().st_mode & 0o777 == 0o600
    token.write_text("theirs")
    token.chmod(0o644)
    keep_token_private(will_make)
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("theirs", 0o600)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {"repl_rl": None, "missing": "No module named 'repl_rl'"},
            r"can't be imported there \(No module.*runtime_env",
        ),
        ({"repl_rl": "0.0.1"}, r"it has repl_rl 0\.0\.1, and this machine"),
        ({"repl_rl": __version__, "sandbox": "no user namespaces"}, "no user namespaces"),
        ({"repl_rl": __version__}, "^$"),
        ({"error": "no answer within 120 s"}, "no answer within 120 s"),
    ],
)
def test_what_is_wrong_with_a_machine(facts: dict[str, str], says: str) -> None:
    assert re.search(says, Finding(Node("a", "1.2.3.4", {}), facts).problem)


@pytest.mark.more
def test_a_cluster_that_is_not_there() -> None:
    """In a process of its own, because this one may be connected."""
    program = (
        "from repl_rl.cluster import connect\nfrom repl_rl.config import ClusterConfig\n"
        "with connect(ClusterConfig(address='127.0.0.1:1')): pass"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ConfigError: no Ray cluster can be reached at cluster.address '127.0.0.1:1'" in done.stderr
    assert "ray start --head" in done.stderr


def test_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"needs Ray; .*\.\[ray\]"), connect(ClusterConfig()):
        pass
