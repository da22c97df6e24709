"""Graded sessions as a log of inspect_ai, which `inspect view` opens, by the package `inspect-ai`.

    log = to_inspect_log(read_jsonl("e.jsonl"), task="qwen-coder-0.5b", model="qwen2.5-coder-0.5b")
    inspect_ai.log.write_eval_log(log, "e.eval")

A session is a sample; sessions of one problem are its epochs, in their order. A line is a message of the assistant,
with a call of `python` for each of its cells, and what a cell showed is the tool's reply. The grade is the score
`grade`, with the grader's reason. Rewards and kinds of lines are in the messages' metadata.

Not covered: tokens, log-probabilities and images, for which the log has no place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from repl_rl import __version__
from repl_rl.errors import DependencyError
from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import whole

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalScore
    from inspect_ai.model import ChatMessage, ModelUsage

SCORE = "grade"


def require_inspect() -> None:
    """Raises DependencyError, with the command that installs it, without the package."""
    try:
        import inspect_ai.log  # noqa: F401 - is it there?
    except ImportError as error:
        raise DependencyError(
            f"logs of inspect_ai are made by its own package ({error}); bring it with: pip install inspect-ai"
        ) from error


def to_inspect_log(trajectories: Iterable[Trajectory], task: str, model: str) -> EvalLog:
    """The log of an evaluation: `task` names it, `model` who typed. Raises DependencyError without the package."""
    require_inspect()
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats

    sessions = list(trajectories)
    epochs: Counter[str] = Counter()
    samples = []
    for session in sessions:
        epochs[session.task_id] += 1
        samples.append(_sample(session, epochs[session.task_id], model))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    usage = _usage(sessions)
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=created,
            task=task,
            model=model,
            dataset=EvalDataset(name=task, samples=len(epochs), sample_ids=list(epochs)),
            config=EvalConfig(epochs=max(epochs.values(), default=1)),
            packages={"repl_rl": __version__},
        ),
        results=EvalResults(
            total_samples=len(sessions),
            completed_samples=sum(not session.is_lost for session in sessions),
            scores=_scores(sessions),
        ),
        stats=EvalStats(started_at=created, completed_at=created, model_usage={model: usage}),
        samples=samples,
    )


def _scores(sessions: Sequence[Trajectory]) -> list[EvalScore]:
    from inspect_ai.log import EvalMetric, EvalScore

    grades = [session.outcome_reward for session in sessions if not session.is_lost]
    graded = [grade for grade in grades if grade is not None]
    if not graded:
        return []
    mean = EvalMetric(name="mean", value=fmean(graded))
    return [
        EvalScore(
            name=SCORE,
            scorer=SCORE,
            scored_samples=len(graded),
            unscored_samples=len(sessions) - len(graded),
            metrics={"mean": mean},
        )
    ]


def _sample(session: Trajectory, epoch: int, model: str) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ChatMessageAssistant, ModelOutput
    from inspect_ai.scorer import Score

    question = whole(session.prompt if session.question is None else session.question)
    messages = list(_messages(session, question))
    said = [message for message in messages if isinstance(message, ChatMessageAssistant)]
    answer = None if session.answer is None else ", ".join(session.answer)
    scores = {}
    if session.outcome_reward is not None and not session.is_lost:
        scores[SCORE] = Score(value=session.outcome_reward, answer=answer, explanation=session.grade_reason)
    error = None
    if session.is_lost:
        message = session.error or str(session.stop_reason)
        error = EvalError(message=message, traceback=message, traceback_ansi=message)
    return EvalSample(
        id=session.task_id,
        epoch=epoch,
        input=question,
        target=session.reference or "",
        messages=messages,
        output=ModelOutput.from_message(said[-1]) if said else ModelOutput(model=model),
        scores=scores or None,
        error=error,
        model_usage={model: _usage([session])},
        total_time=session.duration_s,
        working_time=session.duration_s - session.queue_s,
        metadata={
            "family": session.family,
            "dialect": session.dialect or "python",
            "stop_reason": str(session.stop_reason),
            "prompt": whole(session.prompt),
            "lines": len(session.lines),
        },
    )


def _messages(session: Trajectory, question: str) -> Iterator[ChatMessage]:
    from inspect_ai.model import ChatMessageUser

    yield ChatMessageUser(content=question)
    for number, line in enumerate(session.lines):
        yield from _messages_of_line(line, number)


def _messages_of_line(line: Line, number: int) -> Iterator[ChatMessage]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageTool
    from inspect_ai.tool import ToolCall

    call_ids = [f"{number}.{index}" for index in range(len(line.cells))]
    calls = []
    for call_id, cell in zip(call_ids, line.cells, strict=True):
        calls.append(ToolCall(id=call_id, function="python", arguments={"code": whole(cell.source)}))
    metadata = {"kind": str(line.kind), "error_name": line.error_name, "reward": line.reward}
    metadata["advantage"] = line.advantage
    yield ChatMessageAssistant(content=whole(line.text), tool_calls=calls or None, metadata=metadata)
    for call_id, cell in zip(call_ids, line.cells, strict=True):
        yield ChatMessageTool(content=whole(cell.output), tool_call_id=call_id, function="python")


def _usage(sessions: Sequence[Trajectory]) -> ModelUsage:
    """Sampled tokens, and prompts once each."""
    from inspect_ai.model import ModelUsage

    sampled = sum(session.sampled_tokens for session in sessions)
    read = sum(len(session.prompt_ids) for session in sessions)
    return ModelUsage(input_tokens=read, output_tokens=sampled, total_tokens=read + sampled)
