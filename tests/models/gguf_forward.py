"""A forward pass of Qwen2 in numpy, in float64, on the tensors of a GGUF file: a second implementation."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def logits(file: Path, ids: list[int], embeddings: str = "token_embd") -> np.ndarray:
    """Of each next token, shape [len(ids), vocabulary]. `embeddings` names the tensor that they are taken from."""
    read = GGUFReader(file)
    tensors = {each.name: each for each in read.tensors}

    def weight(name: str, rows: slice | list[int] = slice(None)) -> np.ndarray:
        tensor = tensors[name]
        values: np.ndarray = dequantize(tensor.data[rows], tensor.tensor_type).astype(np.float64)
        return values

    def setting(name: str) -> float:
        return float(read.fields[f"qwen2.{name}"].contents())

    heads, stored = int(setting("attention.head_count")), int(setting("attention.head_count_kv"))
    epsilon, base = setting("attention.layer_norm_rms_epsilon"), setting("rope.freq_base")
    hidden = weight(f"{embeddings}.weight", ids)
    size, length = hidden.shape[1] // heads, len(ids)
    angles = np.arange(length)[:, None] / base ** (np.arange(0, size, 2) / size)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    mask = np.triu(np.full((length, length), -np.inf), 1)

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + epsilon) * weight(f"{name}.weight")

    def projected(values: np.ndarray, name: str) -> np.ndarray:
        bias = weight(f"{name}.bias") if f"{name}.bias" in tensors else 0.0
        return values @ weight(f"{name}.weight").T + bias

    def rotated(values: np.ndarray) -> np.ndarray:
        first, second = np.split(values, 2, -1)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    for layer in range(int(setting("block_count"))):
        block, before = f"blk.{layer}", normed(hidden, f"blk.{layer}.attn_norm")
        query = rotated(projected(before, f"{block}.attn_q").reshape(length, heads, size))
        key = rotated(projected(before, f"{block}.attn_k").reshape(length, stored, size)).repeat(heads // stored, 1)
        value = projected(before, f"{block}.attn_v").reshape(length, stored, size).repeat(heads // stored, 1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size) + mask
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = np.einsum("hqk,khd->qhd", shares, value).reshape(length, -1)
        hidden = hidden + projected(seen, f"{block}.attn_output")
        before = normed(hidden, f"{block}.ffn_norm")
        gate = projected(before, f"{block}.ffn_gate")
        hidden = hidden + projected(
            gate / (1 + np.exp(-gate)) * projected(before, f"{block}.ffn_up"), f"{block}.ffn_down"
        )
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    return normed(hidden, "output_norm") @ weight(head).T
