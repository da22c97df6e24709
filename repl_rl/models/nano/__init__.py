"""nano: a Llama of about 0.9M parameters that types into the interpreter. It copies well, and has a bad policy.

The weights ship with the package; `python -m studies.nano` makes them again from a seed. Importing this package loads
no torch.
"""

from pathlib import Path

NANO_PATH = Path(__file__).resolve().parent / "weights"
"""The shipped checkpoint, a folder that transformers and vLLM load."""

CONVENTIONS_PATH = Path(__file__).resolve().parent / "conventions"
"""The checkpoint of nano-conventions, which works in five dialects: python, fenced, inline, tool_call and text."""

RLM_PATH = Path(__file__).resolve().parent / "recursive_sessions"
"""The checkpoint of nano-rlm, which asks itself about parts of a list, and counts its answers."""

SHIPPED = {"nano": NANO_PATH, "nano-conventions": CONVENTIONS_PATH, "nano-rlm": RLM_PATH}
"""By the name in a config."""

__all__ = ["CONVENTIONS_PATH", "NANO_PATH", "RLM_PATH", "SHIPPED"]
