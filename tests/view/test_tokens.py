from pathlib import Path

import pytest
from tokenizers import Tokenizer

from repl_rl.models.nano import NANO_PATH, SHIPPED
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory
from repl_rl.view.tokens import TokenRow, load_token_texts, texts_fit, token_rows
from tests import vocabularies


def trajectory_of(ids: tuple[int, ...], *lines: Line) -> Trajectory:
    sampled = tuple(any(line.start <= index < line.end for line in lines) for index in range(len(ids)))
    logprobs = tuple(-0.25 * (index + 1) if was_sampled else 0.0 for index, was_sampled in enumerate(sampled))
    return Trajectory("t", ">>>", (1,), ids, sampled, logprobs, StopReason.EOS, lines)


def test_rows_say_whose_each_token_is() -> None:
    first = Line(1, 3, "ab", LineKind.STATEMENT)
    second = Line(5, 6, "e", LineKind.ANSWER)
    made = trajectory_of((10, 11, 12, 13, 14, 15, 16), first, second)
    letters = {10: "-", 11: "a", 12: "b", 13: "c", 14: "", 15: "e", 16: "f"}
    assert token_rows(made, lambda ids: [letters[index] for index in ids]) == [
        TokenRow(10, "-", None, False, None),
        TokenRow(11, "a", -0.5, True, 0),
        TokenRow(12, "b", -0.75, True, 0),
        TokenRow(13, "c", None, False, 0),
        TokenRow(14, None, None, False, 0),
        TokenRow(15, "e", -1.5, True, 1),
        TokenRow(16, "f", None, False, 1),
    ]
    assert [(row.id, row.text) for row in token_rows(made, None)] == [(id, None) for id in range(10, 17)]
    assert token_rows(trajectory_of(()), None) == []


@pytest.mark.parametrize(
    ("text", "spelled", "fits"),
    [
        (" x\n", [" x", "\n"], True),
        (" x\n", [" y", "\n"], False),
        (" x", [" x", "<|endoftext|>"], True),
        ("é", ["\\xc3", "\\xa9"], True),
        ("?", ["é", "x"], True),
    ],
)
def test_texts_that_contradict_a_line_do_not_fit(text: str, spelled: list[str], fits: bool) -> None:
    made = trajectory_of((0, 1), Line(0, 2, text, LineKind.STATEMENT))
    assert texts_fit(made, lambda ids: [spelled[index] for index in ids]) is fits
    assert [row.text for row in token_rows(made, lambda ids: spelled)] == (spelled if fits else [None, None])


@pytest.mark.parametrize(("name", "folder"), [("nano", NANO_PATH), ("nano-conventions", SHIPPED["nano-conventions"])])
def test_models_that_ship_are_known_by_name(name: str, folder: Path) -> None:
    texts, same = load_token_texts(name), load_token_texts(str(folder))
    assert texts is not None
    assert same is not None
    everything = range(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size())
    assert texts(everything) == same(everything)


@pytest.mark.parametrize("kind", ["nano", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen", "gemma"))])
def test_texts_are_the_bytes_that_the_engine_goes_by(kind: str, tmp_path: Path) -> None:
    vocabulary = getattr(vocabularies, kind)()
    (tmp_path / "config.json").write_text("{}")
    vocabulary.tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = load_token_texts(str(tmp_path))
    assert texts is not None
    expected = [data.decode("utf-8", "backslashreplace") for data in vocabulary.token_bytes]
    assert texts(range(len(expected))) == expected


def test_what_has_no_tokenizer_that_can_be_read_has_no_texts(tmp_path: Path) -> None:
    assert load_token_texts(str(tmp_path)) is None
    for name, text in (("config.json", "{}"), ("tokenizer.json", '{"model": "none"}')):
        (tmp_path / name).write_text(text)
        assert load_token_texts(str(tmp_path)) is None
    assert load_token_texts("no such model") is None


def test_a_hub_id_is_looked_for_among_what_was_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    stored = tmp_path / "models--someone--something"
    snapshot = stored / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("abc")
    (snapshot / "tokenizer.json").write_bytes((NANO_PATH / "tokenizer.json").read_bytes())
    look = huggingface_hub.try_to_load_from_cache
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *names: look(*names, cache_dir=tmp_path))
    texts = load_token_texts("someone/something")
    assert texts is not None
    assert texts([278]) == [Tokenizer.from_file(str(NANO_PATH / "tokenizer.json")).decode([278])]
    assert load_token_texts("someone/else") is None
