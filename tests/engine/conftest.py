"""What the tests of one process share: the vocabulary of nano, and one vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import vocabularies

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine import Vocabulary, make_engine
from repl_rl.models.nano import NANO_PATH

if TYPE_CHECKING:
    from repl_rl.engine.vllm import VLLMEngine

CONTEXT_TOKENS, BLOCKS, PLACES = 512, 48, 8


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """That of nano."""
    return vocabularies.nano()


@pytest.fixture(scope="session")
def ending_vocabulary() -> Vocabulary:
    """nano's, in which a comma ends the text too: it has never seen its own end of text."""
    nano = vocabularies.nano()
    return Vocabulary(nano.tokenizer, nano.encode_output(","))


@pytest.fixture(scope="session")
def vllm_engine(ending_vocabulary: Vocabulary) -> Iterator[VLLMEngine]:
    """nano in vLLM, in this process, with a small KV cache. A test that changes something of it puts it back."""
    config = EngineConfig(
        backend="vllm", context_tokens=CONTEXT_TOKENS, places=PLACES, vllm={"num_gpu_blocks_override": BLOCKS}
    )
    engine = make_engine(str(NANO_PATH), ending_vocabulary, ModelConfig(), config, seed=11)
    yield engine  # type: ignore[misc]
    engine.close()
