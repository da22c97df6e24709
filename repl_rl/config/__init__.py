"""The YAML file as pydantic models. Ranges are declared on the fields. Errors on unknown keys name the nearest key.

Each part of the library gets its own small section, never the whole `Config`. Importing this loads nothing;
a name that is asked for loads its module.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_rl.config.cluster import ClusterConfig as ClusterConfig
    from repl_rl.config.credit import CreditConfig as CreditConfig
    from repl_rl.config.estimators import Baseline as Baseline
    from repl_rl.config.estimators import Scale as Scale
    from repl_rl.config.file import Config as Config
    from repl_rl.config.file import dump_config as dump_config
    from repl_rl.config.file import load_config as load_config
    from repl_rl.config.file import no_config as no_config
    from repl_rl.config.file import parse_config as parse_config
    from repl_rl.config.rewards import Reward as Reward
    from repl_rl.config.rewards import RewardsConfig as RewardsConfig
    from repl_rl.config.rollout import BranchConfig as BranchConfig
    from repl_rl.config.rollout import BudgetConfig as BudgetConfig
    from repl_rl.config.rollout import DialectConfig as DialectConfig
    from repl_rl.config.rollout import EngineConfig as EngineConfig
    from repl_rl.config.rollout import KernelConfig as KernelConfig
    from repl_rl.config.rollout import McpConfig as McpConfig
    from repl_rl.config.rollout import ModelConfig as ModelConfig
    from repl_rl.config.rollout import SamplingConfig as SamplingConfig
    from repl_rl.config.rollout import SeededSampling as SeededSampling
    from repl_rl.config.rollout import SubcallsConfig as SubcallsConfig
    from repl_rl.config.rollout import ToolsConfig as ToolsConfig
    from repl_rl.config.section import Section as Section
    from repl_rl.config.sft import SftConfig as SftConfig
    from repl_rl.config.tasks import ColumnsConfig as ColumnsConfig
    from repl_rl.config.tasks import TasksConfig as TasksConfig
    from repl_rl.config.train import AsynchronousConfig as AsynchronousConfig
    from repl_rl.config.train import EvalConfig as EvalConfig
    from repl_rl.config.train import MaskConfig as MaskConfig
    from repl_rl.config.train import TrainConfig as TrainConfig
    from repl_rl.utils.folders import shipped_configs as shipped_configs

_HOMES = {
    "AsynchronousConfig": "repl_rl.config.train",
    "Baseline": "repl_rl.config.estimators",
    "BranchConfig": "repl_rl.config.rollout",
    "BudgetConfig": "repl_rl.config.rollout",
    "ClusterConfig": "repl_rl.config.cluster",
    "ColumnsConfig": "repl_rl.config.tasks",
    "Config": "repl_rl.config.file",
    "CreditConfig": "repl_rl.config.credit",
    "DialectConfig": "repl_rl.config.rollout",
    "EngineConfig": "repl_rl.config.rollout",
    "EvalConfig": "repl_rl.config.train",
    "KernelConfig": "repl_rl.config.rollout",
    "MaskConfig": "repl_rl.config.train",
    "ModelConfig": "repl_rl.config.rollout",
    "Reward": "repl_rl.config.rewards",
    "RewardsConfig": "repl_rl.config.rewards",
    "SamplingConfig": "repl_rl.config.rollout",
    "Scale": "repl_rl.config.estimators",
    "Section": "repl_rl.config.section",
    "SeededSampling": "repl_rl.config.rollout",
    "SftConfig": "repl_rl.config.sft",
    "SubcallsConfig": "repl_rl.config.rollout",
    "TasksConfig": "repl_rl.config.tasks",
    "McpConfig": "repl_rl.config.rollout",
    "ToolsConfig": "repl_rl.config.rollout",
    "TrainConfig": "repl_rl.config.train",
    "dump_config": "repl_rl.config.file",
    "load_config": "repl_rl.config.file",
    "no_config": "repl_rl.config.file",
    "parse_config": "repl_rl.config.file",
    "shipped_configs": "repl_rl.utils.folders",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'repl_rl.config' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
