"""What everything else passes around: lines, trajectories, the task they answer, and files of them.

Importing this loads nothing; a name that is asked for loads its module.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.trajectory.beside import Beside as Beside
    from repl_rl.trajectory.beside import LineValues as LineValues
    from repl_rl.trajectory.beside import Recorded as Recorded
    from repl_rl.trajectory.beside import model_of as model_of
    from repl_rl.trajectory.beside import read_beside as read_beside
    from repl_rl.trajectory.beside import recorded_label as recorded_label
    from repl_rl.trajectory.beside import sign as sign
    from repl_rl.trajectory.data import Branch as Branch
    from repl_rl.trajectory.data import Compaction as Compaction
    from repl_rl.trajectory.data import Group as Group
    from repl_rl.trajectory.data import Line as Line
    from repl_rl.trajectory.data import LineKind as LineKind
    from repl_rl.trajectory.data import Message as Message
    from repl_rl.trajectory.data import RecordedCell as RecordedCell
    from repl_rl.trajectory.data import RewardPart as RewardPart
    from repl_rl.trajectory.data import StopReason as StopReason
    from repl_rl.trajectory.data import SubCall as SubCall
    from repl_rl.trajectory.data import Task as Task
    from repl_rl.trajectory.data import ToolCall as ToolCall
    from repl_rl.trajectory.data import Trajectory as Trajectory
    from repl_rl.trajectory.data import Waited as Waited
    from repl_rl.trajectory.data import whole_session as whole_session
    from repl_rl.trajectory.jsonl import jsonl_lines as jsonl_lines
    from repl_rl.trajectory.jsonl import read_jsonl as read_jsonl
    from repl_rl.trajectory.jsonl import read_labelled as read_labelled
    from repl_rl.trajectory.jsonl import read_record as read_record
    from repl_rl.trajectory.jsonl import write_jsonl as write_jsonl

_HOMES = {
    "Beside": "beside",
    "Branch": "data",
    "Compaction": "data",
    "Group": "data",
    "Line": "data",
    "LineKind": "data",
    "LineValues": "beside",
    "Message": "data",
    "Recorded": "beside",
    "RecordedCell": "data",
    "RewardPart": "data",
    "StopReason": "data",
    "SubCall": "data",
    "Task": "data",
    "ToolCall": "data",
    "Trajectory": "data",
    "Waited": "data",
    "jsonl_lines": "jsonl",
    "model_of": "beside",
    "read_beside": "beside",
    "read_jsonl": "jsonl",
    "read_labelled": "jsonl",
    "read_record": "jsonl",
    "recorded_label": "beside",
    "sign": "beside",
    "whole_session": "data",
    "write_jsonl": "jsonl",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.trajectory' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repl_rl.trajectory.{_HOMES[name]}"), name)
