"""A causal language model of transformers that keeps keys and values in rows, one per sequence, between two lines.

- `KVRows`: transformers' caches grow all rows of a batch in step. Here every row has a length of its own: the token at
  position p stands in column p of its row, and a forward pass runs over a span of neighbouring rows without copying
  them. Attention masks are transformers' own predicates (causal, sliding window, chunked), evaluated at each row's own
  positions, by way of its attention and mask registries.
- `RowModel`: the model with its rows. When it is loaded, a short probe through the rows has to give the logits of the
  model's own forward pass, or the model is refused. This catches what rows can't hold: recurrent states, biases made
  from a padding mask.
- `sample_tokens`: one token per row from logits, and its log-probability under the distribution that it was drawn from.
  The numbers are those of vLLM's `logprobs_mode="processed_logprobs"`: after temperature, top-k and top-p. Greedy rows
  report the log-probability at temperature 1, untruncated. Temperatures between 0 and 0.01 count as 0.01, as in vLLM.

Not covered: states that are not keys and values (Mamba, linear attention); penalties, logit bias, grammars. Sliding
layers keep all columns.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, Cache, DynamicCache
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from repl_rl.config import SamplingConfig
from repl_rl.config.rollout import LEAST_TEMPERATURE
from repl_rl.errors import EngineError
from repl_rl.models.find import loading, positions_of, positions_of_rows
from repl_rl.models.whole import whole_weights

ROWS_ATTENTION = "repl_rl_rows"
"""Name of the attention implementation whose masks follow a `KVRows`."""
_PROBE_LENGTHS = (3, 7)
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Of log-probabilities. The short types round differently with every batch shape; a wrong cache is off by far more."""


class KVRows(Cache):  # type: ignore[misc]
    """A cache of `row_count` rows and `width` columns, and one more column that takes the padding.

    `aim` sets the rows and columns of the next forward pass. Memory is allocated when the first pass shows a layer's
    shape, and when `reserve` asks for more.
    """

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.row_count = 0
        self.width = 0
        self._stored: dict[tuple[int, str], torch.Tensor] = {}  # keys and values of each layer, (S, C + 1, H, D)
        self._rows = slice(0, 0)
        self._row_index = torch.empty(0)  # (B, 1)
        self._positions = torch.empty(0)  # (B, Q)
        self._columns = torch.empty(0)  # (B, Q)
        self._length = 0

    @property
    def bytes_per_token(self) -> int:
        """The size of a token's keys and values, in all layers that forward passes have gone through so far."""
        return sum(states[0, 0].nbytes for states in self._stored.values())

    def reserve(self, row_count: int, width: int) -> None:
        """Make room for this many rows and columns at least; what is stored stays."""
        if row_count <= self.row_count and width <= self.width:
            return
        self.row_count = max(row_count, self.row_count)
        self.width = max(width, self.width)
        for name, states in self._stored.items():
            old_row_count, old_columns, heads, head_size = states.shape
            old_width = old_columns - 1  # without the column of the padding, which nobody reads
            larger = states.new_zeros(self.row_count, self.width + 1, heads, head_size)
            larger[:old_row_count, :old_width] = states[:, :old_width]
            self._stored[name] = larger

    def aim(self, rows: slice, positions: torch.Tensor) -> None:
        """The next forward pass runs over `rows`, its tokens at `positions` (B, Q); -1 is padding."""
        self._rows = rows
        self._positions = positions.clamp(min=0)
        self._columns = positions.where(positions >= 0, self.width)
        self._row_index = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        self._length = int(positions.max()) + 1

    def swap(self, row: int, other_row: int, length: int) -> None:
        """Exchange the first `length` columns of two rows."""
        for states in self._stored.values():
            states[[row, other_row], :length] = states[[other_row, row], :length]

    def copy(self, row: int, other_row: int, length: int) -> None:
        """Write the first `length` columns of `row` into `other_row` as well."""
        for states in self._stored.values():
            states[other_row, :length] = states[row, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states (B, H, Q, D); returns all states of the rows (B, H, K, D), K up to the longest row."""
        keys = self._put((layer_idx, "keys"), key_states)
        values = self._put((layer_idx, "values"), value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0

    def get_query_offset(self, layer_idx: int = 0) -> torch.Tensor:
        """The position of every query (B, Q), in place of transformers' single offset; for `_row_mask`."""
        return self._positions

    def __len__(self) -> int:
        return len(self._stored) // 2

    def _put(self, name: tuple[int, str], states: torch.Tensor) -> torch.Tensor:
        """Store the new keys or values of a layer (B, H, Q, D); returns all of the rows (B, H, K, D)."""
        if name not in self._stored:
            _, heads, _, head_size = states.shape
            # Zeros, not whatever memory holds: a masked NaN would still spoil a sum.
            self._stored[name] = states.new_zeros(self.row_count, self.width + 1, heads, head_size)
        rows = self._stored[name][self._rows]  # (B, C + 1, H, D)
        rows[self._row_index, self._columns] = states.transpose(1, 2)
        return rows[:, : self._length].transpose(1, 2)


def _row_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: torch.Tensor,
    mask_function: Callable[..., torch.Tensor],
    device: torch.device,
    **_: Any,
) -> torch.Tensor:
    """Which columns each query sees (B, 1, Q, K), by transformers' predicate at the positions `q_offset` (B, Q)."""
    batch = torch.arange(batch_size, device=device).view(-1, 1, 1, 1)  # (B, 1, 1, 1)
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    positions = q_offset.view(batch_size, 1, q_length, 1)  # (B, 1, Q, 1)
    columns = torch.arange(kv_length, device=device).view(1, 1, 1, -1)  # (1, 1, 1, K)
    mask = mask_function(batch, head, positions, columns)
    return mask.expand(batch_size, 1, q_length, kv_length)


AttentionInterface.register(ROWS_ATTENTION, sdpa_attention_forward)
AttentionMaskInterface.register(ROWS_ATTENTION, _row_mask)


class RowModel:
    """The model, its rows, and forward passes over neighbouring rows. Not thread-safe."""

    def __init__(self, path: str, dtype: str) -> None:
        """Raises ModelError if the checkpoint can't be loaded, or does not work row by row."""
        if torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        else:
            self.device = torch.device("cpu")
        torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN would plan attention anew for each length
        self.rows = KVRows()
        with loading(f"the transformers engine can't run {path!r}"):
            with whole_weights():
                self._model = AutoModelForCausalLM.from_pretrained(
                    path, dtype=getattr(torch, dtype), trust_remote_code=False
                )
            self._model.eval().requires_grad_(False).to(self.device)
            arguments = inspect.signature(self._model.forward).parameters
            self._rows_argument = "cache" if "cache" in arguments else "past_key_values"
            """The name that its keys and values have: the first one since transformers 5.24."""
            self.bytes_per_token = self._prove(_TOLERANCE[dtype])
        self._parameters = dict(self._model.named_parameters(remove_duplicate=False))
        self.parameter_count = int(self._model.num_parameters())
        self.weight_bytes = int(self._model.get_memory_footprint())
        text_config = self._model.config.get_text_config()
        positions = {
            "max_position_embeddings": getattr(text_config, "max_position_embeddings", None),
            "rope_parameters": getattr(text_config, "rope_parameters", None),
        }
        self.most_positions = positions_of_rows(positions) or positions_of(positions)
        """The longest sequence that rows can hold; None if the model's config does not say."""

    def next_logits(self, first_row: int, pending: Sequence[Sequence[int]], lengths: Sequence[int]) -> torch.Tensor:
        """Feed `pending[b]` to row `first_row + b`, after its first `lengths[b]` tokens; returns logits (B, V)."""
        longest = max(len(new_ids) for new_ids in pending)
        input_ids = []
        positions = []
        # Padding goes to the left, so that the last column has the last token of each row, whose logits are wanted.
        for new_ids, length in zip(pending, lengths, strict=True):
            padding = longest - len(new_ids)
            input_ids.append([0] * padding + list(new_ids))
            positions.append([-1] * padding + list(range(length, length + len(new_ids))))
        rows = slice(first_row, first_row + len(pending))
        self.rows.aim(rows, torch.tensor(positions, device=self.device))
        with torch.no_grad():
            output = self._model(
                input_ids=torch.tensor(input_ids, device=self.device),
                position_ids=self.rows.get_query_offset(),
                use_cache=True,
                logits_to_keep=1,
                **{self._rows_argument: self.rows},
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights in, by the parameter's name. Raises EngineError for a name or shape that is not the model's."""
        for name, weight in named_weights:
            parameter = self._parameters.get(name)
            if parameter is None or parameter.shape != weight.shape:
                reason = "there is none of that name"
                if parameter is not None:
                    reason = f"the engine's is {tuple(parameter.shape)}"
                raise EngineError(f"can't load the weight {name!r} of shape {tuple(weight.shape)}: {reason}")
            with torch.no_grad():
                parameter.copy_(weight)

    def close(self) -> None:
        """Release weights and rows; no pass runs after it. A second call does nothing."""
        self._model = None
        self._parameters = {}
        self.rows = KVRows()

    def _prove(self, tolerance: float) -> int:
        """Check the rows against plain forward passes; returns the bytes per token.

        Raises ValueError if two rows of different lengths, each fed in two parts, give other log-probabilities.
        """
        config = self._model.config
        if any(DynamicCache(config=config).is_linear):
            raise ValueError("it keeps recurrent states, and rows hold keys and values only; take vLLM (engine: vllm)")
        if config._attn_implementation != "sdpa":
            raise ValueError(
                f"it needs {config._attn_implementation!r} attention, and rows need 'sdpa'; take vLLM (engine: vllm)"
            )
        vocabulary_size = config.get_text_config().vocab_size
        longest = [(7 * position) % vocabulary_size for position in range(max(_PROBE_LENGTHS))]
        sequences = [longest[:length] for length in _PROBE_LENGTHS]
        last_positions = [length - 1 for length in _PROBE_LENGTHS]
        # One plain pass is enough: the shorter sequence is the beginning of the longest.
        with torch.no_grad():
            output = self._model(input_ids=torch.tensor([longest], device=self.device), use_cache=False)
        expected = output.logits[0][last_positions].float().log_softmax(-1)  # (B, V)

        self._model.set_attn_implementation(ROWS_ATTENTION)
        self.rows.reserve(len(sequences), len(longest))
        first_lengths = [length // 2 for length in _PROBE_LENGTHS]
        first_parts = []
        second_parts = []
        for sequence, first_length in zip(sequences, first_lengths, strict=True):
            first_parts.append(sequence[:first_length])
            second_parts.append(sequence[first_length:])
        self.next_logits(0, first_parts, [0] * len(sequences))
        logits = self.next_logits(0, second_parts, first_lengths)  # (B, V)
        difference = (logits.float().log_softmax(-1) - expected).abs().max().item()
        if not difference <= tolerance:  # so that a NaN is refused as well
            raise ValueError(f"log-probabilities from its cached rows are off by {difference:.3g}")
        bytes_per_token = self.rows.bytes_per_token
        self.rows = KVRows()
        return bytes_per_token


def sample_tokens(
    logits: torch.Tensor, settings: Sequence[SamplingConfig], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities in nats for `logits` (B, V), penalties included, by one number in [0, 1) per row.

    Row b's token is the first whose cumulative probability exceeds `uniforms[b]`; a greedy row's is the likeliest.
    A row of non-finite logits comes back with a non-finite log-probability.
    """
    rows_of_settings: dict[tuple[float, float, int, float], list[int]] = {}
    for row, setting in enumerate(settings):
        key = (setting.temperature, setting.min_p, setting.top_k, setting.top_p)
        rows_of_settings.setdefault(key, []).append(row)

    device = logits.device
    logits = logits.float()
    likeliest = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
    is_greedy = torch.zeros(len(settings), 1, dtype=torch.bool, device=device)  # (B, 1)
    for (temperature, min_p, top_k, top_p), rows in rows_of_settings.items():
        is_greedy[rows] = temperature == 0
        warpers = _warpers(temperature, min_p, top_k, top_p)
        if len(rows_of_settings) == 1:
            logits = warpers(None, logits)
        elif warpers:
            warped = warpers(None, logits[rows])
            logits = logits.index_copy(0, torch.tensor(rows, device=device), warped)
    logps = torch.log_softmax(logits, dim=-1)  # (B, V)

    # Draws by inverting the cumulative sum. In single precision, a large vocabulary's small probabilities would be lost
    # in it. It does not end at exactly 1, so the draws are scaled to where it ends.
    cumulative = logps.exp().cumsum(dim=-1, dtype=torch.float64)  # (B, V)
    draws = torch.tensor(uniforms, dtype=torch.float64, device=device).unsqueeze(1)  # (B, 1)
    sampled = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)  # (B, 1)
    sampled = sampled.clamp(max=logps.shape[1] - 1)
    ids = torch.where(is_greedy, likeliest, sampled)  # (B, 1)
    return ids.squeeze(1).tolist(), logps.gather(1, ids).squeeze(1).tolist()


def _warpers(temperature: float, min_p: float, top_k: int, top_p: float) -> LogitsProcessorList:
    """transformers' warpers in vLLM's order; none for greedy rows. Tokens as likely as the k-th stay, at least one."""
    warpers = LogitsProcessorList()
    if temperature == 0:
        return warpers
    if temperature != 1:
        warpers.append(TemperatureLogitsWarper(float(max(temperature, LEAST_TEMPERATURE))))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers
