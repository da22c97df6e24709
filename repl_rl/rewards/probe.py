"""A small made-up trajectory, on which reward functions are tried before anything expensive starts."""

from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

PROBE = Trajectory(
    task_id="probe",
    prompt=">>> # What is 6 * 7?\n>>>",
    prompt_ids=(0,),
    completion_ids=(1, 2, 3, 4, 5),
    sampled_mask=(True, False, True, False, True),
    logprobs=(-0.5, 0.0, -0.5, 0.0, -0.5),
    stop_reason=StopReason.ANSWER,
    lines=(
        Line(0, 1, " 6 * seven\n", LineKind.EXCEPTION, "NameError", "NameError: name 'seven' is not defined\n>>>"),
        Line(2, 3, " 6 * 7\n", LineKind.EXPRESSION, None, "42\n>>>"),
        Line(4, 5, " submit_final_answer(_)\n", LineKind.ANSWER),
    ),
    answer=("42",),
)
