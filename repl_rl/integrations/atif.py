"""Sessions in the Agent Trajectory Interchange Format (ATIF 1.8), which harbor and others read, by the package `atif`.

    document = to_atif(trajectory, model="Qwen/Qwen3-4B")     # atif.Trajectory
    document.to_json_dict()

A line is a step of the agent. What it typed is the step's message; each of its cells is a call of `python`, and what
the cell showed is the observation. Ids and log-probabilities are those that were sampled. What stood in the sequence
after the line, prompts included, is in the step's `extra.output`, and its ids are in `metrics.extra.output_token_ids`.

A branch is exported as the whole session (`repl_rl.trajectory.whole_session`). Its parent's lines are steps with
`is_copied_context`, so that each sampled token is trained on in one document alone.

Not covered: images, whose number is in the step's `extra`; where in a line each cell stood; the waits of a timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from repl_rl import __version__
from repl_rl.errors import DependencyError
from repl_rl.trajectory import Line, SubCall, Trajectory
from repl_rl.utils.text import whole

if TYPE_CHECKING:
    import atif

_NOTES = (
    "Observations hold what cells showed. The sequence that the policy read is extra.prompt of the first step, then "
    "each step's message and extra.output, in turn. Its ids are metrics.prompt_token_ids, then each step's "
    "metrics.completion_token_ids and metrics.extra.output_token_ids, in turn; metrics.prompt_tokens counts them. "
    "After a system step, whose message is the new prompt, a new sequence begins, with prompt_token_ids of its own. "
    "metrics.extra.token_versions holds the version of the weights that sampled each of the completion_token_ids, if "
    "it is not extra.version for all of the session. Agent steps with is_copied_context are lines of the session that "
    "this one branched off (extra.branch), and are trained on there."
)


def require_atif() -> None:
    """Raises DependencyError, with the command that installs it, without the package."""
    try:
        import atif  # noqa: F401 - is it there?
    except ImportError as error:
        raise DependencyError(
            "sessions in ATIF are made by the package atif; bring it with: pip install atif"
        ) from error


def to_atif(
    trajectory: Trajectory, model: str | None = None, trajectory_id: str | None = None, first_own_line: int = 0
) -> atif.Trajectory:
    """The session as a document. `model` names who typed it, `trajectory_id` the document, by default after the task.

    `first_own_line` is for a branch that was made whole: the lines before it are its parent's. Sub-calls that the
    policy answered (`subcalls.train`) are embedded, and their lines refer to them. Raises DependencyError without the
    package.
    """
    require_atif()
    import atif

    name = trajectory_id or trajectory.task_id
    subagents = []
    for number, line in enumerate(trajectory.lines):
        for index, call in enumerate(line.subcalls):
            if call.trajectory is not None and call.trajectory.lines:
                subagents.append(to_atif(call.trajectory, model, _subcall_id(name, number, index)))
    steps = list(_steps(trajectory, name, first_own_line))
    return atif.Trajectory(
        schema_version="ATIF-v1.8",
        trajectory_id=name,
        agent=atif.Agent(
            name="repl_rl", version=__version__, model_name=model, extra={"dialect": trajectory.dialect or "python"}
        ),
        steps=steps,
        notes=_NOTES,
        final_metrics=atif.FinalMetrics(
            total_prompt_tokens=sum(step.metrics.prompt_tokens for step in steps if step.metrics),
            total_completion_tokens=trajectory.sampled_tokens,
            total_steps=len(steps),
            extra={
                "duration_s": trajectory.duration_s,
                "engine_s": trajectory.engine_s,
                "kernel_s": trajectory.kernel_s,
                "queue_s": trajectory.queue_s,
            },
        ),
        subagent_trajectories=subagents or None,
        extra=_given(
            {
                "task_id": trajectory.task_id,
                "family": trajectory.family,
                "stop_reason": str(trajectory.stop_reason),
                "answer": trajectory.answer,
                "answer_forms": trajectory.answer_forms,
                "reference": trajectory.reference,
                "outcome_reward": trajectory.outcome_reward,
                "grade_reason": trajectory.grade_reason,
                "environment_reward": trajectory.environment_reward,
                "environment_reason": trajectory.environment_reason,
                "version": trajectory.version,
                "branch": None if trajectory.branch is None else msgspec.to_builtins(trajectory.branch),
                "first_own_line": None if trajectory.branch is None else first_own_line,
                "error": trajectory.error,
            }
        ),
    )


def _steps(trajectory: Trajectory, name: str, first_own_line: int) -> Iterator[atif.Step]:
    import atif

    question = trajectory.prompt if trajectory.question is None else trajectory.question
    yield atif.Step(step_id=1, source="user", message=whole(question), extra={"prompt": whole(trajectory.prompt)})
    compactions = {compaction.start: compaction for compaction in trajectory.compactions}
    output_ends = [line.start for line in trajectory.lines[1:]] + [len(trajectory.completion_ids)]
    token_versions = trajectory.token_versions if trajectory.updates else None
    prompt_ids = trajectory.prompt_ids
    begins_at = 0
    step_id = 1
    for number, (line, output_end) in enumerate(zip(trajectory.lines, output_ends, strict=True)):
        is_first_of_prompt = number == 0
        if line.start in compactions:
            compaction = compactions[line.start]
            prompt_ids = compaction.prompt_ids
            begins_at = line.start
            is_first_of_prompt = True
            step_id += 1
            yield atif.Step(step_id=step_id, source="system", message=whole(compaction.prompt), is_copied_context=True)
        step_id += 1
        metrics_extra: dict[str, list[int]] = {}
        if output_end > line.end:
            metrics_extra["output_token_ids"] = list(trajectory.completion_ids[line.end : output_end])
        if token_versions is not None:
            metrics_extra["token_versions"] = list(token_versions[line.start : line.end])
        prompt_token_ids = None
        if is_first_of_prompt:
            # A loop of the user's own may have put something between the prompt and the first line.
            prompt_token_ids = [*prompt_ids, *trajectory.completion_ids[begins_at : line.start]]
        metrics = atif.Metrics(
            prompt_tokens=len(prompt_ids) + line.start - begins_at,
            completion_tokens=line.end - line.start,
            prompt_token_ids=prompt_token_ids,
            completion_token_ids=list(trajectory.completion_ids[line.start : line.end]),
            logprobs=list(trajectory.logprobs[line.start : line.end]),
            extra=metrics_extra or None,
        )
        yield _step_of(line, step_id, metrics, name, number, is_copied=number < first_own_line)


def _step_of(line: Line, step_id: int, metrics: atif.Metrics, name: str, number: int, *, is_copied: bool) -> atif.Step:
    import atif

    calls = []
    results = []
    for index, cell in enumerate(line.cells):
        call_id = f"{number}.{index}"
        calls.append(
            atif.ToolCall(tool_call_id=call_id, function_name="python", arguments={"code": whole(cell.source)})
        )
        results.append(atif.ObservationResult(source_call_id=call_id, content=whole(cell.output)))
    for index, subcall in enumerate(line.subcalls):
        results.append(_subcall_result(subcall, _subcall_id(name, number, index)))
    return atif.Step(
        step_id=step_id,
        source="agent",
        message=whole(line.text),
        tool_calls=calls or None,
        observation=atif.Observation(results=results) if results else None,
        metrics=metrics,
        is_copied_context=True if is_copied else None,
        extra=_given(
            {
                "kind": str(line.kind),
                "error_name": line.error_name,
                "output": line.output,
                "reward": line.reward,
                "reward_parts": msgspec.to_builtins(line.reward_parts) or None,
                "advantage": line.advantage,
                "duration_s": line.duration_s,
                "fingerprint": line.fingerprint,
                "calls": msgspec.to_builtins(line.calls) or None,
                "images": len(line.images) or None,
            }
        ),
    )


def _subcall_id(name: str, line: int, index: int) -> str:
    return f"{name}/line {line}/call {index}"


def _subcall_result(subcall: SubCall, subcall_id: str) -> atif.ObservationResult:
    import atif

    reference = None
    if subcall.trajectory is not None and subcall.trajectory.lines:
        reference = [atif.SubagentTrajectoryRef(trajectory_id=subcall_id)]
    return atif.ObservationResult(
        content=whole(subcall.text),
        subagent_trajectory_ref=reference,
        extra=_given(
            {
                "asked": subcall.prompt,
                "batch": subcall.batch,
                "prompt_tokens": subcall.prompt_tokens,
                "tokens": subcall.tokens,
                "duration_s": subcall.duration_s,
                "error_name": subcall.error_name,
            }
        ),
    )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are known, with texts that any reader of JSON takes."""
    return {name: _readable(value) for name, value in values.items() if value is not None}


def _readable(value: Any) -> Any:
    """What a session showed may hold halves of characters, and environments and graders quote it."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {name: _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value
