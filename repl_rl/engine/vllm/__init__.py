"""An `Engine` over vLLM in this process."""

from repl_rl.engine.vllm.engine import VLLMEngine as VLLMEngine
