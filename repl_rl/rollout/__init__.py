"""Where engine, kernel and dialect meet: tasks become trajectories, line by line. `loop.py` reads top to bottom.

What other rooms use is imported from here, and loaded with the name that is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.rollout.batch import OnEnd as OnEnd
    from repl_rl.rollout.batch import RolloutBatch as RolloutBatch
    from repl_rl.rollout.batch import RolloutService as RolloutService
    from repl_rl.rollout.batch import Watched as Watched
    from repl_rl.rollout.batch import refuse_if_all_aborted as refuse_if_all_aborted
    from repl_rl.rollout.batch import require_tasks as require_tasks
    from repl_rl.rollout.checks import Checked as Checked
    from repl_rl.rollout.checks import check_rollouts as check_rollouts
    from repl_rl.rollout.continued import BeginsAsRecorded as BeginsAsRecorded
    from repl_rl.rollout.continued import Continuations as Continuations
    from repl_rl.rollout.continued import continued_from_each_line as continued_from_each_line
    from repl_rl.rollout.continued import first_difference as first_difference
    from repl_rl.rollout.continued import gone_on as gone_on
    from repl_rl.rollout.custom import Sampler as Sampler
    from repl_rl.rollout.episode import make_prompt as make_prompt
    from repl_rl.rollout.episode import prompts as prompts
    from repl_rl.rollout.events import Began as Began
    from repl_rl.rollout.events import Ended as Ended
    from repl_rl.rollout.events import Event as Event
    from repl_rl.rollout.events import Listener as Listener
    from repl_rl.rollout.events import Ran as Ran
    from repl_rl.rollout.events import Sampled as Sampled
    from repl_rl.rollout.events import events_of as events_of
    from repl_rl.rollout.execute import TrajectoryKernel as TrajectoryKernel
    from repl_rl.rollout.execute import TurnResult as TurnResult
    from repl_rl.rollout.execute import run_turn as run_turn
    from repl_rl.rollout.guest import Guest as Guest
    from repl_rl.rollout.guest import GuestSession as GuestSession
    from repl_rl.rollout.loop import Rollout as Rollout
    from repl_rl.rollout.metrics import SessionNumbers as SessionNumbers
    from repl_rl.rollout.metrics import batch_metrics as batch_metrics
    from repl_rl.rollout.metrics import is_solved as is_solved
    from repl_rl.rollout.metrics import metrics_of as metrics_of
    from repl_rl.rollout.metrics import rates_of as rates_of
    from repl_rl.rollout.metrics import solve_rates as solve_rates
    from repl_rl.rollout.rescoring import Rescoring as Rescoring
    from repl_rl.rollout.rescoring import rescored as rescored
    from repl_rl.rollout.retyping import retyped as retyped
    from repl_rl.rollout.retyping import what_differs as what_differs
    from repl_rl.rollout.scheduler import scheduled as scheduled
    from repl_rl.rollout.scoring import CreditedTrajectory as CreditedTrajectory
    from repl_rl.rollout.scoring import credit as credit
    from repl_rl.rollout.scoring import credit_numbers as credit_numbers
    from repl_rl.rollout.scoring import is_flat as is_flat
    from repl_rl.rollout.scoring import reward_table as reward_table
    from repl_rl.rollout.scoring import score as score
    from repl_rl.rollout.scripted import ScriptedPolicy as ScriptedPolicy
    from repl_rl.rollout.scripted import type_session as type_session
    from repl_rl.rollout.scripted import typed_line as typed_line
    from repl_rl.rollout.service import AttachedKernels as AttachedKernels
    from repl_rl.rollout.service import MakeRunner as MakeRunner
    from repl_rl.rollout.service import config_of as config_of
    from repl_rl.rollout.service import load_engine as load_engine
    from repl_rl.rollout.service import open_rollout as open_rollout
    from repl_rl.rollout.service import open_service as open_service
    from repl_rl.rollout.service import start_service as start_service
    from repl_rl.rollout.session import Session as Session
    from repl_rl.rollout.setup import Extensions as Extensions
    from repl_rl.rollout.setup import Grader as Grader
    from repl_rl.rollout.setup import RolloutSetup as RolloutSetup
    from repl_rl.rollout.setup import environment_of as environment_of
    from repl_rl.rollout.setup import environment_pays as environment_pays
    from repl_rl.rollout.setup import limits_of as limits_of
    from repl_rl.rollout.setup import load_extensions as load_extensions
    from repl_rl.rollout.setup import make_extensions as make_extensions
    from repl_rl.rollout.setup import make_pool as make_pool
    from repl_rl.rollout.setup import packed as packed
    from repl_rl.rollout.state import Prompt as Prompt
    from repl_rl.rollout.state import Transcript as Transcript
    from repl_rl.rollout.state import Wait as Wait
    from repl_rl.rollout.subcalls import NoAnswerError as NoAnswerError
    from repl_rl.rollout.subcalls import SubCalls as SubCalls
    from repl_rl.rollout.tree import ForkRule as ForkRule
    from repl_rl.rollout.tree import Root as Root
    from repl_rl.rollout.worker import RolloutWorker as RolloutWorker
    from repl_rl.rollout.worker.program import as_sent as as_sent

_HOMES = {
    "AttachedKernels": "service",
    "Began": "events",
    "BeginsAsRecorded": "continued",
    "Checked": "checks",
    "Continuations": "continued",
    "CreditedTrajectory": "scoring",
    "Ended": "events",
    "Event": "events",
    "Extensions": "setup",
    "ForkRule": "tree",
    "Grader": "setup",
    "Guest": "guest",
    "GuestSession": "guest",
    "Listener": "events",
    "MakeRunner": "service",
    "NoAnswerError": "subcalls",
    "OnEnd": "batch",
    "Prompt": "state",
    "Ran": "events",
    "Rescoring": "rescoring",
    "Rollout": "loop",
    "RolloutBatch": "batch",
    "RolloutService": "batch",
    "RolloutSetup": "setup",
    "RolloutWorker": "worker",
    "Root": "tree",
    "Sampled": "events",
    "Sampler": "custom",
    "ScriptedPolicy": "scripted",
    "Session": "session",
    "SessionNumbers": "metrics",
    "SubCalls": "subcalls",
    "TrajectoryKernel": "execute",
    "Transcript": "state",
    "TurnResult": "execute",
    "Wait": "state",
    "Watched": "batch",
    "as_sent": "worker.program",
    "batch_metrics": "metrics",
    "check_rollouts": "checks",
    "config_of": "service",
    "continued_from_each_line": "continued",
    "credit": "scoring",
    "credit_numbers": "scoring",
    "environment_of": "setup",
    "environment_pays": "setup",
    "events_of": "events",
    "first_difference": "continued",
    "gone_on": "continued",
    "is_flat": "scoring",
    "is_solved": "metrics",
    "limits_of": "setup",
    "load_engine": "service",
    "load_extensions": "setup",
    "make_extensions": "setup",
    "make_pool": "setup",
    "make_prompt": "episode",
    "metrics_of": "metrics",
    "open_rollout": "service",
    "open_service": "service",
    "packed": "setup",
    "prompts": "episode",
    "rates_of": "metrics",
    "refuse_if_all_aborted": "batch",
    "require_tasks": "batch",
    "rescored": "rescoring",
    "retyped": "retyping",
    "reward_table": "scoring",
    "run_turn": "execute",
    "scheduled": "scheduler",
    "score": "scoring",
    "solve_rates": "metrics",
    "start_service": "service",
    "type_session": "scripted",
    "typed_line": "scripted",
    "what_differs": "retyping",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.rollout' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.rollout.{_HOMES[name]}"), name)
