"""64 rollouts of nano through real vLLM and real sandboxed kernels are exact to the token."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from engine.real_rollouts import CONTEXT_TOKENS, TEMPERATURE, assert_logprobs, setup_of
from exactness import RecordingEngine, assert_exact
from scripted import FakeEngine, rollout_of
from waiting import until_async

from repl_rl.config import BranchConfig, EngineConfig, ModelConfig, SamplingConfig
from repl_rl.dialect import PythonDialect
from repl_rl.engine import Vocabulary, make_engine
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scripted import ScriptedSlot
from repl_rl.rollout.service import start_service
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task, Trajectory, whole_session

TREE = BranchConfig(roots=3, forks=2, branches=3, within=5)


@pytest.fixture(scope="module")
def engine(vocabulary: Vocabulary) -> Iterator[RecordingEngine]:
    config = EngineConfig(context_tokens=CONTEXT_TOKENS)
    engine = make_engine(str(NANO_PATH), vocabulary, ModelConfig(), config, seed=7)
    yield RecordingEngine(engine)
    engine.close()


Made = tuple[list[Trajectory], list[Trajectory]]


@pytest.fixture(scope="module")
def made(engine: RecordingEngine, vocabulary: Vocabulary) -> Made:
    """Independent trajectories, and four groups of trees."""
    tasks = make_tasks(None, 64, seed=3, split="heldout")
    with start_service(engine, setup_of(vocabulary)) as service:
        return service.generate(tasks), service.generate(
            [task for task in tasks[:4] for _ in range(TREE.group_size)], branch=TREE
        )


@pytest.fixture
def patient_pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    """A line that asks lasts as long as all it asks, where one session may type a line that never ends."""
    return kernel_pools(Limits(line_s=900, cpu_s=15), size=3)


class HalfScripted(FakeEngine):
    """Trajectories type `typed`, each in a slot of the engine; what they ask, the engine answers."""

    def __init__(self, engine: Any, vocabulary: Vocabulary, typed: Sequence[str]) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._typed = typed
        self.held: Counter[bool] = Counter()

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Any]:
        async with self._engine.slot(tokens, is_subcall) as slot:
            self.held[is_subcall] += 1
            try:
                yield slot if is_subcall else ScriptedSlot(self._vocabulary, lambda _: ("".join(self._typed), True))
            finally:
                self.held[is_subcall] -= 1


def asking(
    engine: Any,
    vocabulary: Vocabulary,
    pool: KernelPool,
    typed: Sequence[str],
    environment: Any = "rlm",
    temperature: float = 0,
    **options: Any,
) -> Rollout:
    given: dict[str, Any] = {"vocabulary": vocabulary, "context_tokens": CONTEXT_TOKENS, "environment": environment}
    given |= {"sampling": SamplingConfig(temperature=temperature), "subcalls": {"call_tokens": 32, **options}}
    budget = {"line_tokens": 200, "tokens": 400}
    return rollout_of(HalfScripted(engine, vocabulary, typed), pool, budget=budget, **given)


def assert_the_engine_holds_nothing(engine: RecordingEngine) -> None:
    """In the engine's own thread and in vLLM: what a change of the weights would meet."""
    vllm: Any = engine.engine
    with vllm.paused():
        assert (vllm.admission.admitted, vllm.admission.taken) == (0, 0)
        scheduler = vllm.llm.llm_engine.engine_core.engine_core.scheduler
        assert scheduler.requests == scheduler.parked == {}
        assert not scheduler.has_unfinished_requests()


@pytest.mark.more
async def test_sessions_ask_the_engine_that_samples_them(
    engine: RecordingEngine, vocabulary: Vocabulary, pool: KernelPool, monkeypatch: Any
) -> None:
    """As many tokens at a time as one trajectory has: each sub-call goes beyond that, and nobody waits forever."""
    monkeypatch.setattr(engine.engine.admission.rooms[0], "capacity", CONTEXT_TOKENS)  # type: ignore[attr-defined]
    problems = make_tasks(None, 6, seed=5, split="heldout")
    asked = [PythonDialect().completion_prompt(problem.question) for problem in problems]
    tasks = [Task(f"t{number}", "Solve?", "", metadata={"context": asked}) for number in range(6)]

    async def alone(prompt: str) -> str:
        ids = vocabulary.encode_prompt(prompt)
        async with engine.engine.slot(CONTEXT_TOKENS) as slot:
            line = await slot.sample_line(ids, 32, SamplingConfig(temperature=0))
        return vocabulary.decode([index for index in line.ids if index not in vocabulary.eos_ids]).strip()

    made = await asking(engine.engine, vocabulary, pool, ["FINAL(llm_query_batched(context))\n"]).many(tasks)
    expected = [await alone(prompt) for prompt in asked]
    assert len(set(expected)) > 1
    assert [each.answer for each in made] == [(repr(expected),)] * 6
    assert sum(len(line.subcalls) for each in made for line in each.lines) == 36
    assert_the_engine_holds_nothing(engine)


async def test_sub_calls_that_are_given_up_leave_no_request_in_vllm(
    engine: RecordingEngine, vocabulary: Vocabulary, pool: KernelPool
) -> None:
    rollout = asking(engine.engine, vocabulary, pool, ["llm_query_batched(['>>> #'] * 60)\n"] * 12)
    held = cast(HalfScripted, rollout.engine).held
    tasks = [Task(f"t{number}", "Q?", "", metadata={"context": ""}) for number in range(3)]
    async with aclosing(rollout.as_completed(RolloutBatch(tasks))) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        await until_async(lambda: held[True])
        waiting.cancel()
        await asyncio.wait([waiting])
    assert held.total() == 0
    assert_the_engine_holds_nothing(engine)


QUESTIONS = ["What is 3 * 4?", "What is 17 + 25?", "What is the greatest common divisor of 12 and 18?"]


class Consulting:
    """An environment whose sessions may ask. Its prompt is short."""

    def use_model(self, model: Any) -> None:
        self._model = model

    def reset(self, task: Task) -> Any:
        return {"consult": self.consult}

    async def consult(self) -> list[str]:
        """Consult."""
        answers: list[str] = await self._model.ask(QUESTIONS)
        return answers


@pytest.mark.more
async def test_what_is_sampled_for_sub_calls_is_exact_to_the_token(
    engine: RecordingEngine, vocabulary: Vocabulary, patient_pool: KernelPool
) -> None:
    """Answers, as `subcalls.train` trains them: all that the engine was given and has sampled."""
    recording = RecordingEngine(engine.engine)
    options: dict[str, Any] = {"environment": Consulting, "temperature": 1, "train": True}
    rollout = asking(recording, vocabulary, patient_pool, ["submit_final_answer(len(consult()))\n"], **options)
    made = await rollout.many([Task(f"t{number}", "Solve?", "") for number in range(4)])
    assert {each.answer for each in made} == {("3",)}
    calls = [call for each in made for line in each.lines for call in line.subcalls]
    trained = [call.trajectory for call in calls if call.trajectory is not None]
    assert len(trained) == len(calls) == 12
    assert_exact(trained, recording, vocabulary)
    assert all(call.tokens == call.trajectory.sampled_tokens for call in calls if call.trajectory is not None)
    assert_logprobs(trained, NANO_PATH)
    assert_the_engine_holds_nothing(engine)


def test_what_is_sampled_in_rollouts_and_trees_is_exact_to_the_token(
    made: Made, engine: RecordingEngine, vocabulary: Vocabulary
) -> None:
    """Each sampled token is in one trajectory: a branch has those of its root in its prompt."""
    kinds = {line.kind for trajectory in made[0] for line in trajectory.lines}
    assert {"statement", "expression", "answer"} <= kinds
    assert kinds & {"exception", "syntax_error"}
    assert_exact([*made[0], *made[1]], engine, vocabulary)


def test_trees_have_forks_and_their_branches_begin_as_their_roots_do(made: Made) -> None:
    _, trees = made
    groups = [trees[start : start + TREE.group_size] for start in range(0, len(trees), TREE.group_size)]
    begun = [each.branch for each in trees if each.branch is not None]
    assert len(begun) == len(groups) * (TREE.group_size - TREE.roots)
    assert any(branch.by == "fork" and branch.line > 0 for branch in begun)
    for group in groups:
        for each in group:
            session = whole_session(each, group)
            assert session.prompt_ids == group[0].prompt_ids
            assert (
                session.completion_ids[len(session.completion_ids) - len(each.completion_ids) :] == each.completion_ids
            )


def test_logprobs_equal_a_float32_forward_pass_over_the_finished_sequence(made: Made) -> None:
    assert_logprobs([*made[0], *made[1]], NANO_PATH, TEMPERATURE)
