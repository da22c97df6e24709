"""An `Engine` over HTTP: one or many `vllm serve` processes that hold the same weights."""

from repl_rl.engine.server.engine import VLLMServerEngine as VLLMServerEngine
