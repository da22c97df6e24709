"""What everything else passes around: lines, trajectories, the task they answer, and files of them."""

from repl_rl.trajectory.data import (
    Branch,
    Compaction,
    Group,
    Line,
    LineKind,
    Message,
    RecordedCell,
    RewardPart,
    StopReason,
    SubCall,
    Task,
    ToolCall,
    Trajectory,
    whole_session,
)
from repl_rl.trajectory.jsonl import model_of, read_jsonl, read_labelled, read_record, write_jsonl

__all__ = [
    "Branch",
    "Compaction",
    "Group",
    "Line",
    "LineKind",
    "Message",
    "RecordedCell",
    "RewardPart",
    "StopReason",
    "SubCall",
    "Task",
    "ToolCall",
    "Trajectory",
    "model_of",
    "read_jsonl",
    "read_labelled",
    "read_record",
    "whole_session",
    "write_jsonl",
]
