"""Log-probabilities of typed tokens, and of nothing else: no padding, no interpreter text through the LM head.

    forward = TypedForward.open(model)                        # None if the model can't be packed
    logprobs, entropy = forward(pack(ids, attention, typed))  # (K,), (K,): one per typed token

The loss itself stays TRL's: it takes these values, spread over (B, T), as it takes its own.
"""

from repl_rl.trainer.packed.forward import TypedForward
from repl_rl.trainer.packed.packing import Packed, pack

__all__ = ["Packed", "TypedForward", "pack"]
