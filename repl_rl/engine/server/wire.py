"""A line as vLLM's `/inference/v1/generate` asks for it and answers it. Pure.

Chosen over `/v1/completions`: it takes the sampling parameters as they are (no defaults from the checkpoint's
generation config), its logprobs carry integer ids, and it names the weight version that sampled each token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl_rl.config import SamplingConfig
from repl_rl.engine.base import Finish, SampledLine
from repl_rl.engine.server.client import ServerRefused, ServerUnreachable
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError

CLAMPED = -9999.0
"""What vLLM's front end sends for a log-probability that is not a number, or minus infinity."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str
    labels: frozenset[str]
    """Weight versions that its tokens were sampled with."""

    def to_line(self, vocabulary: Vocabulary) -> SampledLine:
        if self.ids[-1] in vocabulary.stop_ids:
            finish = Finish.NEWLINE
        else:
            cut = self.reason == "length" and self.ids[-1] not in vocabulary.eos_ids
            finish = Finish.LENGTH if cut else Finish.EOS
        return SampledLine(self.ids, self.logprobs, finish)


def line_request(
    ids: Sequence[int], max_tokens: int, sampling: SamplingConfig, stop_ids: Sequence[int], label: str
) -> dict[str, Any]:
    """The body that asks for one line. `label` names the weights, and keeps what was cached with others apart."""
    return {
        "token_ids": list(ids),
        "cache_salt": label,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": max_tokens,
            "stop_token_ids": list(stop_ids),
            "logprobs": 0,
            "detokenize": False,
        },
    }


def read_answer(url: str, answer: Any) -> Answer:
    """Raises EngineError for a log-probability that is none, ServerUnreachable for a request that the server gave up,
    and ServerRefused for what has another form."""
    try:
        choice = answer["choices"][0]
        reason = str(choice["finish_reason"])
        if reason == "abort" or not choice["token_ids"]:
            raise ServerUnreachable(f"{url} gave up a request (finish reason {reason!r})")
        ids = tuple(int(index) for index in choice["token_ids"])
        content = choice["logprobs"]["content"]
        named = tuple(int(entry["token_id"]) for entry in content)
        logprobs = tuple(math.nan if entry["logprob"] is None else float(entry["logprob"]) for entry in content)
        labels = frozenset(str(span["version"]) for span in choice["weight_versions"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ServerRefused(f"{url} answered a request for tokens in a form that vLLM 0.32 does not have") from error
    if named != ids:
        raise EngineError(f"{url} answered with log-probabilities of {named} for the tokens {ids}")
    if not all(math.isfinite(value) and value > CLAMPED for value in logprobs):
        raise EngineError(f"{url} sampled tokens with log-probabilities {logprobs}: the weights are broken")
    return Answer(ids, logprobs, reason, labels)
