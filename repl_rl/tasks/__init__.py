"""Problems, from generated families and data sets, and the grader that reads submitted answers of every form."""

from repl_rl.tasks.datasets import PRESETS as PRESETS
from repl_rl.tasks.datasets import Preset as Preset
from repl_rl.tasks.datasets import load_splits as load_splits
from repl_rl.tasks.datasets import load_tasks as load_tasks
from repl_rl.tasks.datasets import require_gradable as require_gradable
from repl_rl.tasks.datasets import require_hub_id as require_hub_id
from repl_rl.tasks.families import FAMILIES as FAMILIES
from repl_rl.tasks.families import Family as Family
from repl_rl.tasks.grading import grade as grade
from repl_rl.tasks.grading import grade_many as grade_many
from repl_rl.tasks.grading import judge_many as judge_many
from repl_rl.tasks.grading.reasons import Verdict as Verdict
from repl_rl.tasks.identity import Split as Split
from repl_rl.tasks.make import environment_of as environment_of
from repl_rl.tasks.make import make_tasks as make_tasks
from repl_rl.tasks.make import split_of as split_of
from repl_rl.tasks.symbolic import SYMBOLIC_FAMILIES as SYMBOLIC_FAMILIES
