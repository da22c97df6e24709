"""An `Engine` over transformers in this process."""

from repl_rl.engine.transformers.engine import TransformersEngine as TransformersEngine
