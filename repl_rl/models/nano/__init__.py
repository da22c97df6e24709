"""nano: a Llama of about 0.9M parameters that types into the interpreter. It copies well, and has a bad policy.

The weights ship with the package; `python -m studies.nano` makes them again from a seed. Importing this package loads
no torch.
"""

from pathlib import Path

NANO_PATH = Path(__file__).resolve().parent / "weights"
"""The shipped checkpoint, a folder that transformers and vLLM load."""

SHIPPED = {
    "nano": NANO_PATH,
    "nano-conventions": NANO_PATH.with_name("conventions"),
    "nano-rlm": NANO_PATH.with_name("recursive_sessions"),
}
"""By the name in a config. nano-conventions works in five dialects: python, fenced, inline, tool_call and text.
nano-rlm asks itself about parts of a list, and counts its answers."""

__all__ = ["NANO_PATH", "SHIPPED"]
