"""What everything else passes around: lines, trajectories, the task they answer, and files of them."""

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
from repl_rl.trajectory.data import whole_session as whole_session
from repl_rl.trajectory.jsonl import model_of as model_of
from repl_rl.trajectory.jsonl import read_jsonl as read_jsonl
from repl_rl.trajectory.jsonl import read_labelled as read_labelled
from repl_rl.trajectory.jsonl import read_record as read_record
from repl_rl.trajectory.jsonl import write_jsonl as write_jsonl
