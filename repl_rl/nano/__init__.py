"""nano: a Llama of about 0.9M parameters that types into the interpreter, well at copying and badly at policy.

The weights travel with the package; `repl_rl.nano.build.build` makes them again from a seed. Importing this package
loads no torch.
"""

from pathlib import Path

NANO_PATH = Path(__file__).resolve().parent / "weights"
"""The shipped checkpoint, a folder that transformers and vLLM load."""

__all__ = ["NANO_PATH"]
