"""Keeps the screen, or a notebook's cells, to the run itself: what torch, vLLM and their relatives log is left out.

Call it before anything of them is imported; what is loaded already has said its part. Errors are still shown.
"""

from __future__ import annotations

import logging
import os
import warnings

_VARIABLES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
_LOGGERS = ("transformers", "trl", "vllm", "datasets", "accelerate", "torch", "torch._library.triton")


def quiet() -> None:
    """From here on: no Python warnings, and of the libraries' logs only errors. A variable that is set stays."""
    warnings.simplefilter("ignore")
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
