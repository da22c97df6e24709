"""A causal language model of transformers that reads rows of `KVRows`.

Loading proves the pair: a short probe through the rows has to give the logits of the model's own forward pass, else
the model is refused. That catches what rows can't hold: recurrent states, biases made from a padding mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from repl_rl.engine.kv_rows import ROWS_ATTENTION, KVRows
from repl_rl.errors import EngineError, ModelError

_PROBE_LENGTHS = (3, 7)
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Of log-probabilities. The short types round differently with every batch shape; a wrong cache is off by far more."""


class RowModel:
    """The model, its rows, and forward passes over neighbouring rows. Not thread-safe."""

    def __init__(self, path: str, dtype: str) -> None:
        """Raises ModelError if the checkpoint can't be loaded, or does not work row by row."""
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        self.rows = KVRows()
        try:
            self._model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
            self._model.eval().requires_grad_(False).to(self.device)
            self.bytes_per_token = self._prove(_TOLERANCE[dtype])
        except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"the transformers engine can't run {path!r}: {error}") from error
        self._parameters = dict(self._model.named_parameters(remove_duplicate=False))

    @property
    def most_positions(self) -> int | None:
        """Longest sequence that the model was made for, where it says so."""
        found: int | None = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return found

    @property
    def parameter_count(self) -> int:
        return int(self._model.num_parameters())

    @property
    def weight_bytes(self) -> int:
        return int(self._model.get_memory_footprint())

    def next_logits(self, first_row: int, pending: Sequence[Sequence[int]], lengths: Sequence[int]) -> torch.Tensor:
        """Feed `pending[b]` to row `first_row + b`, behind its first `lengths[b]` tokens; returns logits (B, V)."""
        longest = max(map(len, pending))
        padding = [longest - len(ids) for ids in pending]
        ids = [[0] * pad + list(new) for pad, new in zip(padding, pending, strict=True)]
        positions = [
            [-1] * pad + list(range(length, length + longest - pad))
            for pad, length in zip(padding, lengths, strict=True)
        ]
        self.rows.aim(slice(first_row, first_row + len(ids)), torch.tensor(positions, device=self.device))
        return self._last_logits(ids, self.rows)

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights in, by the parameter's name. Raises EngineError for a name or shape that is not the model's."""
        for name, weight in named_weights:
            own = self._parameters.get(name)
            if own is None or own.shape != weight.shape:
                found = "there is none of that name" if own is None else f"the engine's is {tuple(own.shape)}"
                raise EngineError(f"can't load the weight {name!r} of shape {tuple(weight.shape)}: {found}")
            with torch.no_grad():
                own.copy_(weight)

    def close(self) -> None:
        """Release weights and rows; no pass runs after it. A second call does nothing."""
        self._model, self._parameters, self.rows = None, {}, KVRows()

    def _last_logits(self, ids: Sequence[Sequence[int]], rows: KVRows | None) -> torch.Tensor:
        """Logits (B, V) behind the last of `ids` (B, Q)."""
        place = {} if rows is None else {"past_key_values": rows, "position_ids": rows.get_query_offset()}
        with torch.no_grad():
            output = self._model(
                input_ids=torch.tensor(ids, device=self.device), use_cache=rows is not None, logits_to_keep=1, **place
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _prove(self, tolerance: float) -> int:
        """Bytes per token. Raises ValueError if rows of two lengths, fed in two goes, differ from plain passes."""
        config = self._model.config
        if any(DynamicCache(config=config).is_linear):
            raise ValueError("it keeps recurrent states, and rows hold keys and values only")
        if config._attn_implementation != "sdpa":
            raise ValueError(f"it needs {config._attn_implementation!r} attention, and rows need 'sdpa'")
        vocabulary_size = config.get_text_config().vocab_size
        sequences = [[(7 * n) % vocabulary_size for n in range(length)] for length in _PROBE_LENGTHS]
        expected = torch.cat([self._last_logits([ids], None) for ids in sequences])
        self._model.set_attn_implementation(ROWS_ATTENTION)
        self.rows.reserve(len(sequences), max(_PROBE_LENGTHS))
        self.next_logits(0, [ids[: len(ids) // 2] for ids in sequences], [0] * len(sequences))
        rest = [ids[len(ids) // 2 :] for ids in sequences]
        found = self.next_logits(0, rest, [len(ids) // 2 for ids in sequences])
        difference = (found.float().log_softmax(-1) - expected.float().log_softmax(-1)).abs().max().item()
        if not difference <= tolerance:
            raise ValueError(f"log-probabilities from its cached rows are off by {difference:.3g}")
        bytes_per_token = self.rows.bytes_per_token
        self.rows = KVRows()
        return bytes_per_token
