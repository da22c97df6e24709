"""The same policy behind every engine: the numbers of a float32 forward pass, and the same greedy sessions.

One policy is random (`random_checkpoint`): its tokens hold newlines with text on both sides; it makes errors, long
outputs and blocks, and types ahead. The other, nano-conventions, types in every dialect; it was shown all of them but
`ipython`. One engine serves them all, with `inline`'s stops: where a turn ends changes nothing of this. Kernels are
real.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from exactness import RecordingEngine, assert_exact
from random_checkpoint import make_random_checkpoint
from real_rollouts import TEMPERATURE, assert_logprobs, roll_out
from serving import start_server

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, ModelConfig, SamplingConfig
from repl_rl.dialect import DIALECTS
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.models.nano import SHIPPED
from repl_rl.trajectory import LineKind, Trajectory

SHOWN = {
    "python": ">>>",
    "ipython": "\nIn [",
    "fenced": "```output\n",
    "inline": "</fn_",
    "tool_call": "<tool_response>",
}
"""What stands in many outputs of a dialect."""
CASES = [
    pytest.param("random", "vllm", marks=pytest.mark.more),
    pytest.param("random", "transformers", marks=pytest.mark.more),
    pytest.param("random", "server", marks=pytest.mark.slow),
    pytest.param("conventions", "vllm", marks=pytest.mark.slow),
    pytest.param("conventions", "transformers", marks=pytest.mark.slow),
]
of_each_policy_and_engine = pytest.mark.parametrize(("policy", "backend"), CASES)


@dataclass(frozen=True)
class Rollouts:
    """Sampled and greedy trajectories of one policy in one dialect, and what the engine was asked."""

    sampled: list[Trajectory]
    greedy: list[Trajectory]
    engine: RecordingEngine


RolloutsOf = Callable[[str, str], dict[str, Rollouts]]
"""By dialect, of a policy and an engine; made once."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "random": make_random_checkpoint(tmp_path_factory.mktemp("checkpoint")),
        "conventions": SHIPPED["nano-conventions"],
    }


@pytest.fixture(scope="module")
def vocabularies(paths: dict[str, Path]) -> dict[str, Vocabulary]:
    return {
        "random": load_vocabulary(str(paths["random"])),
        "conventions": load_vocabulary(str(paths["conventions"]), DIALECTS["inline"].stops),
    }


@pytest.fixture(scope="module")
def rollouts(paths: dict[str, Path], vocabularies: dict[str, Vocabulary]) -> RolloutsOf:
    @cache
    def make(policy: str, backend: str) -> dict[str, Rollouts]:
        path, vocabulary, context_tokens = paths[policy], vocabularies[policy], 768
        with ExitStack() as stack:
            servers: tuple[str, ...] = ()
            if backend == "server":
                server = start_server(path / "log", f"--model={path}", f"--max-model-len={context_tokens}")
                stack.callback(server.kill)
                server.wait_until_up()
                servers = (server.url,)
            config = EngineConfig(backend=backend, servers=servers, context_tokens=context_tokens)
            engine = make_engine(str(path), vocabulary, ModelConfig(path=str(path)), config, seed=5)
            stack.callback(engine.close)
            found = {}
            for dialect in ["python"] if policy == "random" else DIALECTS:
                recorded = RecordingEngine(engine)
                in_chat = policy == "conventions"
                sampled, greedy = roll_out(
                    recorded,
                    vocabulary,
                    (None, SamplingConfig(temperature=0)),
                    count=12 if in_chat else 64,
                    dialect=DialectConfig(name=dialect, max_output_chars=80 if in_chat else 120, examples=0),
                    context_tokens=context_tokens,
                    budget=BudgetConfig(line_tokens=96, lines=16, tokens=400)
                    if in_chat
                    else BudgetConfig(line_tokens=48, lines=8, tokens=600),
                    chat=in_chat or None,
                )
                found[dialect] = Rollouts(sampled, greedy, recorded)
            return found

    return make


@of_each_policy_and_engine
def test_sequences_are_exact(
    rollouts: RolloutsOf, vocabularies: dict[str, Vocabulary], policy: str, backend: str
) -> None:
    for made in rollouts(policy, backend).values():
        assert_exact(made.sampled + made.greedy, made.engine, vocabularies[policy])


@of_each_policy_and_engine
def test_logprobs_agree_with_a_float32_forward_pass(
    rollouts: RolloutsOf, paths: dict[str, Path], policy: str, backend: str
) -> None:
    for made in rollouts(policy, backend).values():
        assert_logprobs(made.sampled, paths[policy], TEMPERATURE)
        assert_logprobs(made.greedy, paths[policy])


@pytest.mark.parametrize(("policy", "backend"), [case for case in CASES if case.values[1] != "transformers"])
def test_greedy_rollouts_are_those_of_transformers_token_by_token(
    rollouts: RolloutsOf, policy: str, backend: str
) -> None:
    def essence(trajectory: Trajectory) -> tuple[object, ...]:
        lines = [(line.start, line.end, line.text, line.kind, line.output) for line in trajectory.lines]
        return trajectory.completion_ids, trajectory.sampled_mask, trajectory.stop_reason, lines

    theirs = rollouts(policy, "transformers")
    for dialect, made in rollouts(policy, backend).items():
        assert list(map(essence, made.greedy)) == list(map(essence, theirs[dialect].greedy)), dialect


@of_each_policy_and_engine
def test_the_rollouts_hold_what_can_go_wrong(rollouts: RolloutsOf, policy: str, backend: str) -> None:
    """Errors, truncated outputs, newlines and blocks typed ahead; in other dialects, outputs between lines."""
    for dialect, made in rollouts(policy, backend).items():
        trajectories = made.sampled + (made.greedy if policy == "conventions" else [])
        put_in = [line.output for each in trajectories for line, _ in pairwise(each.lines) if line.output]
        assert sum(SHOWN.get(dialect, "never") in text for text in put_in) >= (3 if dialect in SHOWN else 0), dialect
    if policy == "random":
        sampled = rollouts(policy, backend)["python"].sampled
        lines = [line for trajectory in sampled for line in trajectory.lines]
        for kind in (LineKind.EXCEPTION, LineKind.SYNTAX_ERROR, LineKind.OPEN):
            assert [line.kind for line in lines].count(kind) >= 5, kind
        assert sum("characters left out" in line.output for line in lines) >= 5
        typed_ahead = [line.text.split("\n", 1)[1] for line in lines if "\n" in line.text[:-1]]
        assert sum(text.strip(" ") != "" for text in typed_ahead) >= 5
        assert sum(text.startswith("\n") for text in typed_ahead) >= 5
        assert sum(not line.output for trajectory in sampled for line in trajectory.lines[:-1]) >= 5
