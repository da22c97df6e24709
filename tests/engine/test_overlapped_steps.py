"""Lines in vLLM as it schedules on a GPU, where one step is in flight while the next one is scheduled: ours, and those
of a server. The same lines as it schedules on a CPU.

The worker has no model. It keeps in blocks, for each token, a hash of its weights' version and all ids so far, and
samples from a hash of all that a request's blocks hold. So each id and log-probability is known, and a token at a wrong
place, of another line, of older weights or from blocks that were given away is another one.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.worker_base import CompilationTimes

from repl_rl.config import SamplingConfig
from repl_rl.engine import SampledLine, Vocabulary
from repl_rl.engine.base import Finish
from repl_rl.engine.vllm.engine import LineSlot, LineStepper
from repl_rl.engine.vllm.scheduler import AsyncLineScheduler, LineScheduler, _AsyncServerScheduler
from repl_rl.engine.vocabulary import LINE_KEY
from repl_rl.models.nano import NANO_PATH

CONTEXT_TOKENS, BLOCK_TOKENS, BLOCKS, PLACES = 96, 4, 40, 6
LINE_TOKENS = 24
ENDS = (0, 199, 261)
"""nano's end of text, and two of its tokens with a newline. Every tenth token is one of them."""
ANSWERS = {
    "get_supported_kv_cache_layouts": ["LBNHC"],
    "determine_available_memory": 1 << 30,
    "compile_or_warm_up_model": CompilationTimes(0.0, 0.0),
}
"""What else vLLM asks the worker as it starts."""


def cell(version: int, before: int, token: int) -> int:
    return hash((version, before, token))


def sampled_from(cells: list[int]) -> tuple[int, float]:
    chosen, is_other = divmod(hash(tuple(cells)), 10)
    return chosen % 640 if is_other else ENDS[chosen % len(ENDS)], -(chosen % 1021) / 1024


def sampled_after(ids: list[int], version: int) -> tuple[int, float]:
    return sampled_from(list(itertools.accumulate(ids, partial(cell, version), initial=0))[1:])


class Worker:
    """Understands what vLLM sends to either of its model runners."""

    def __init__(self, config: Any) -> None:
        self.version = 0
        self._block_tokens = config.cache_config.block_size
        self._cells: dict[tuple[int, int], int] = {}
        """By block and place in it."""
        self._prompt_tokens: dict[str, int] = {}
        self._ids: dict[str, list[int]] = {}
        self._blocks: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: ANSWERS.get(name)

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return {"layer": FullAttentionSpec(self._block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)}

    def sleep(self, level: int) -> None:
        self._cells = {}

    def execute_model(self, scheduled: Any) -> ModelRunnerOutput | None:
        for name in scheduled.finished_req_ids:
            self._ids.pop(name, None)  # one that was aborted before it ran is unknown
        computed = {}
        for new in scheduled.scheduled_new_reqs:
            self._ids[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
            self._prompt_tokens[new.req_id] = len(new.prompt_token_ids)
            self._blocks[new.req_id], computed[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
        old = scheduled.scheduled_cached_reqs
        lists = old.req_ids, old.new_block_ids, old.num_computed_tokens, old.num_output_tokens
        for name, blocks, computed[name], outputs in zip(*lists, strict=True):
            self._ids[name] = old.all_token_ids.get(name, self._ids[name])
            assert len(self._ids[name]) == self._prompt_tokens[name] + outputs
            self._blocks[name] = [*([] if name in old.resumed_req_ids else self._blocks[name]), *(blocks or [[]])[0]]
        tokens = scheduled.num_scheduled_tokens
        sampled = [self._compute(name, computed[name], computed[name] + tokens[name]) for name in tokens]
        ids, logprobs = (np.array([pair[place] if pair else 0 for pair in sampled])[:, None] for place in (0, 1))
        self._output = ModelRunnerOutput(
            list(tokens),
            {name: index for index, name in enumerate(tokens)},
            [[pair[0]] if pair else [] for pair in sampled],
            LogprobsLists(ids, logprobs, np.zeros(len(sampled))),
        )
        return None if tokens else EMPTY_MODEL_RUNNER_OUTPUT

    def sample_tokens(self, grammar: None) -> ModelRunnerOutput:
        return self._output

    def _compute(self, name: str, start: int, end: int) -> tuple[int, float] | None:
        """None where the prompt goes on."""
        ids, blocks, size = self._ids[name], self._blocks[name], self._block_tokens
        places = [(blocks[index // size], index % size) for index in range(end)]
        for index in range(start, end):
            before = self._cells[places[index - 1]] if index else 0
            self._cells[places[index]] = cell(self.version, before, ids[index])
        if end < len(ids):
            return None
        sampled = sampled_from([self._cells[place] for place in places])
        ids.append(sampled[0])
        return sampled


class Executor(UniProcExecutor):  # type: ignore[misc]
    def _init_executor(self) -> None:
        """Also let steps overlap if the scheduler can, which vLLM does not do on a CPU by itself."""
        scheduling = self.vllm_config.scheduler_config
        scheduling.async_scheduling = issubclass(scheduling.get_scheduler_cls(), AsyncScheduler)
        self.driver_worker = Worker(self.vllm_config)


class ServerLines:
    """A stepper whose lines are requests of a server: those of one token with another table's digest, those of two with
    a list of ends, the others with the server's table."""

    numbers = itertools.count()

    def __init__(self, engine: Any, vocabulary: Vocabulary) -> None:
        self._client, self._vocabulary = engine.llm.llm_engine.engine_core, vocabulary
        self._running: dict[str, tuple[LineSlot, int, list[int], list[float]]] = {}

    def add(self, slot: LineSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> None:
        params = SamplingParams(max_tokens=max(2, max_tokens), logprobs=0)
        if max_tokens == 2:
            params.stop_token_ids = sorted(self._vocabulary.stop_ids | self._vocabulary.eos_ids)
        else:
            digest = self._vocabulary.digest if max_tokens > 2 else "another"
            params.extra_args = {LINE_KEY: [self._vocabulary.stops.decode(), digest]}
        slot.name = f"line-{next(self.numbers)}"
        self._running[slot.name] = slot, max_tokens, [], []
        core = self._client.engine_core
        core.add_request(Request(slot.name, ids, params, None, block_hasher=core.request_block_hasher))

    def step(self) -> Iterator[tuple[LineSlot, SampledLine]]:
        for output in self._client.get_output().outputs:
            slot, max_tokens, ids, logprobs = self._running[output.request_id]
            ids += output.new_token_ids
            logprobs += output.new_logprobs.logprobs[:, 0].tolist()
            if output.finish_reason is not None:
                del self._running[slot.name]
                finish = finish_of(ids[-1], self._vocabulary)
                reason = None if finish is Finish.LENGTH else ids[-1]
                assert output.stop_reason == (reason if max_tokens > 1 else self._vocabulary.digest)
                yield slot, SampledLine(tuple(ids), tuple(logprobs), finish)

    def abort(self, slot: LineSlot) -> None:
        del self._running[slot.name]
        self._client.engine_core.abort_requests([slot.name])

    def leave(self, slot: LineSlot) -> None: ...

    def update(self, version: int) -> None:
        assert self._client.reset_prefix_cache()


@dataclass(eq=False)
class Session:
    slot: LineSlot
    ids: list[int]
    lines: int
    """That it still asks for."""
    max_tokens: int = 0


def finish_of(token: int, vocabulary: Vocabulary) -> Finish:
    if token in vocabulary.stop_ids:
        return Finish.NEWLINE
    return Finish.EOS if token in vocabulary.eos_ids else Finish.LENGTH


def assert_right(session: Session, line: SampledLine, versions: Any, vocabulary: Vocabulary) -> None:
    """It is what the weights that it is recorded with sample after its ids, and ends where it has to."""
    ids = list(session.ids)
    for index, sampled in enumerate(zip(line.ids, line.logprobs, strict=True)):
        version = [version for start, version in versions if start <= index][-1]
        assert sampled == sampled_after(ids, version)
        ids.append(sampled[0])
    assert {finish_of(token, vocabulary) for token in line.ids[:-1]} <= {Finish.LENGTH}
    assert line.finish == finish_of(line.ids[-1], vocabulary)
    assert line.finish != Finish.LENGTH or len(line.ids) == session.max_tokens


@pytest.fixture(scope="module", params=[LineScheduler, AsyncLineScheduler, _AsyncServerScheduler])
def engine(request: pytest.FixtureRequest) -> Any:
    """The parts of an engine that a stepper uses."""
    llm = LLM(
        str(NANO_PATH),
        skip_tokenizer_init=True,
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=PLACES,
        max_num_batched_tokens=CONTEXT_TOKENS // 2,
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=BLOCKS,
        scheduling_policy="fcfs" if request.param is _AsyncServerScheduler else "priority",
        scheduler_cls=request.param,
        distributed_executor_backend=Executor,
    )
    llm.llm_engine.engine_core._finalizer.detach()  # it would shut down what engines share
    return SimpleNamespace(llm=llm, version=0, adapter=None, leader=SimpleNamespace(has_others=False))


@pytest.mark.parametrize("seed", range(25))
def test_lines_are_what_their_weights_sample_whatever_happens_meanwhile(
    engine: Any, vocabulary: Vocabulary, seed: int
) -> None:
    """Sessions ask for lines at once or later, more than have places, from a cache that is too short for them. Lines
    are aborted, and weights change, for which the engine may have slept; those of a server while no line runs."""
    random = Random(seed)
    core = engine.llm.llm_engine.engine_core.engine_core
    core.scheduler.use_v2_model_runner = random.random() < 0.5
    is_server = isinstance(core.scheduler, _AsyncServerScheduler)
    stepper: Any = (ServerLines if is_server else LineStepper)(engine, vocabulary)
    shown = [random.choices(range(640), k=tokens) for tokens in (0, 1, 5, 30)]
    idle = [
        Session(LineSlot(f"{seed}-{number}"), [7, *shown[number % 4]], random.randint(1, 6))
        for number in range(random.randint(1, 12))
    ]
    running: dict[LineSlot, Session] = {}
    eagerness, stalled = random.choice([0.02, 0.5, 1]), 0
    while running or idle:
        going_on = random.randint(0, len(idle)) if not running or random.random() < eagerness else 0
        for session in random.sample(idle, going_on):
            idle.remove(session)
            if random.random() < 0.1:
                del session.ids[random.randint(1, len(session.ids)) :]
            room = CONTEXT_TOKENS - len(session.ids)
            if session.lines == 0 or room < 1:
                stepper.leave(session.slot)
                continue
            session.max_tokens = random.randint(1, min(room, LINE_TOKENS))
            running[session.slot] = session
            stepper.add(session.slot, list(session.ids), session.max_tokens, SamplingConfig())
        if running and random.random() < 0.05:
            slot = random.choice(list(running))
            stepper.abort(slot)
            idle.append(running.pop(slot))
        if random.random() < 0.05 and not (is_server and running):
            if random.random() < 0.5:
                engine.llm.sleep(2, mode="keep")
                engine.llm.wake_up(tags=["weights"])
                engine.llm.wake_up(tags=["kv_cache"])
            engine.version = core.model_executor.driver_worker.version = engine.version + 1
            stepper.update(engine.version)
        ended = list(stepper.step()) if running else []
        for slot, line in ended:
            session = running.pop(slot)
            assert_right(session, line, line.versions or ((0, engine.version),), vocabulary)
            session.ids += [*line.ids, *random.choice(shown)]
            session.lines -= 1
            idle.append(session)
        stalled = stalled + 1 if running and not (ended or core.scheduler.running) else 0
        assert stalled < 3, "no line runs"
    assert not core.scheduler.requests
    assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1


@pytest.mark.parametrize("engine", [LineScheduler, AsyncLineScheduler], indirect=True)
def test_sampled_tokens_are_not_counted_as_a_prompts(engine: Any, vocabulary: Vocabulary) -> None:
    """Not the last one, which a step in flight is given as its line ends, nor those of a line that is aborted."""
    stepper, ended = LineStepper(engine, vocabulary), 0
    before = stepper.scheduler.computed_tokens
    for number in range(8):
        slot = LineSlot(f"counted-{number}")
        stepper.add(slot, [300 + number] * 10, LINE_TOKENS, SamplingConfig())
        for _ in range(9):
            if list(stepper.step()):
                ended += 1
                break
        else:
            stepper.abort(slot)
        stepper.leave(slot)
    assert 0 < ended < 8
    assert stepper.scheduler.computed_tokens - before - stepper.decoded_tokens == 8 * 10 == stepper.asked_tokens
