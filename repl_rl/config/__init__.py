"""The YAML file as pydantic models. Ranges are declared on the fields. Errors on unknown keys name the nearest key.

Each part of the library gets its own small section, never the whole `Config`.
"""

from repl_rl.config.cluster import ClusterConfig
from repl_rl.config.credit import Baseline, CreditConfig, Scale
from repl_rl.config.file import Config, dump_config, load_config, parse_config
from repl_rl.config.rewards import Reward, RewardsConfig
from repl_rl.config.rollout import (
    BranchConfig,
    BudgetConfig,
    DialectConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    SamplingConfig,
    SeededSampling,
    SubcallsConfig,
    ToolsConfig,
)
from repl_rl.config.section import Section
from repl_rl.config.tasks import ColumnsConfig, TasksConfig
from repl_rl.config.train import AsynchronousConfig, EvalConfig, TrainConfig
from repl_rl.utils.folders import shipped_configs

__all__ = [
    "AsynchronousConfig",
    "Baseline",
    "BranchConfig",
    "BudgetConfig",
    "ClusterConfig",
    "ColumnsConfig",
    "Config",
    "CreditConfig",
    "DialectConfig",
    "EngineConfig",
    "EvalConfig",
    "KernelConfig",
    "ModelConfig",
    "Reward",
    "RewardsConfig",
    "SamplingConfig",
    "Scale",
    "Section",
    "SeededSampling",
    "SubcallsConfig",
    "TasksConfig",
    "ToolsConfig",
    "TrainConfig",
    "dump_config",
    "load_config",
    "parse_config",
    "shipped_configs",
]
