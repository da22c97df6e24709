"""What TRL's `GRPOTrainer` takes besides: it works here, or is refused with the way out before anything is loaded."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from peft import PromptTuningConfig
from recorded import RecordedTrainer, first_is_right, make_tasks_named, recorded_trainer
from small import ENGINE, rows_of, small_args, small_trainer
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification
from trl import GRPOConfig
from trl.trainer.base_config import _BaseConfig

from repl_rl import ReplGRPOTrainer, read_jsonl
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer.rows import as_dataset, task_of

QUESTIONS = [{"prompt": f"What is {n} + 1?", "level": n} for n in range(8)]


def zero(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def silent(completions: list[Any], **_: Any) -> list[None]:
    return [None] * len(completions)


def of_even_levels(level: list[int], **_: Any) -> list[float | None]:
    return [None if each % 2 else 1.0 for each in level]


class Asking:
    """An environment, as TRL has them, that owns its questions and its rewards."""

    def reset(self, **row: Any) -> str:
        return "What is 1 + 1?"

    def get_reward(self) -> float:
        return 1.0


def refused(folder: Path, message: str, model: Any = "no/such/model", rows: Any = QUESTIONS, **given: Any) -> None:
    rows = Dataset.from_list(rows) if isinstance(rows, list) else rows
    with pytest.raises(ConfigError) as caught:
        ReplGRPOTrainer(model, **{"args": small_args(folder), "train_dataset": rows, "reward_funcs": zero, **given})
    assert message in str(caught.value)


def test_what_would_do_nothing_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "give a loop of your own as rollout", rollout_func=print)
    refused(tmp_path, "args is GRPOConfig, which says nothing of sessions", args=GRPOConfig(bf16=False, use_cpu=True))
    refused(tmp_path, "processing_class is str, not a tokenizer of transformers", processing_class="nano")
    refused(tmp_path, "train_dataset is None, and there is no environment", rows=None)
    refused(tmp_path, "there are several environments ('a')", rows=None, environment_factory={"a": Asking})
    args = small_args(tmp_path, max_steps=-1)
    refused(tmp_path, "max_steps=-1 gives none; set max_steps", rows=None, args=args, environment_factory=Asking)
    stream = Dataset.from_list(QUESTIONS).to_iterable_dataset()
    refused(tmp_path, "is a stream of rows, which has no end", rows=stream, args=args)
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    refused(tmp_path, "PromptTuningConfig, which trains a prompt and no weights", peft_config=prompt)
    with pytest.raises(TypeError, match="callback"):
        ReplGRPOTrainer("no/such/model", small_args(tmp_path), make_tasks_named("a"), callback=[])


def test_there_is_a_class_for_each_reward_function_or_none(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)
    refused(
        tmp_path,
        "reward_processing_classes has 2 for the 1 functions in reward_funcs; give one for each",
        model=str(NANO_PATH),
        reward_processing_classes=[tokenizer, None],
    )


def test_a_reward_model_reads_with_the_class_that_was_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=640, num_attention_heads=2, num_labels=1, **sizes)
    judge = LlamaForSequenceClassification(config)
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)  # the judge has no folder with one
    for given in (tokenizer, [None, tokenizer]):
        functions = [zero, judge] if isinstance(given, list) else judge
        arguments = {"reward_funcs": functions, "reward_processing_classes": given}
        trainer = recorded_trainer(tmp_path, first_is_right, make_tasks_named("a", "b"), trainer=arguments)
        trainer.train()
        [row] = rows_of(trainer)
        assert abs(row[f"rewards/{trainer.reward_func_names[-1]}/mean"]) > 0


@pytest.mark.more
def test_a_tokenizer_takes_the_place_of_the_models(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
    arguments = {"processing_class": tokenizer}
    engine = {**ENGINE, "context_tokens": 1024}
    with small_trainer(tmp_path, trainer=arguments, max_steps=1, engine=engine) as trainer:
        assert trainer.processing_class is trainer.service.vocabulary.tokenizer is tokenizer
        trainer.train()
    [first, *_] = read_jsonl(next((tmp_path / "rollouts").glob("*.jsonl")))
    assert "[user] " in first.prompt
    assert tokenizer.encode(first.prompt, add_special_tokens=False) == list(first.prompt_ids)


def test_without_arguments_they_are_the_default_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_the_cpu(self: Any) -> None:
        self.use_cpu = True
        post_init(self)

    post_init = _BaseConfig.__post_init__
    monkeypatch.setattr(_BaseConfig, "__post_init__", on_the_cpu)
    monkeypatch.chdir(tmp_path)
    trainer = RecordedTrainer(first_is_right, str(NANO_PATH), train_dataset=make_tasks_named("a"))
    assert (trainer.args.output_dir, trainer.args.num_generations) == ("weights-GRPO", 8)


@pytest.mark.parametrize("kind", ["one", "named", "dict"])
def test_held_out_sets_may_be_several_tasks_or_streams(kind: str, tmp_path: Path) -> None:
    tasks = make_tasks_named("x", "y")
    streamed = Dataset.from_list([{"prompt": "1 + 1?", "answer": "2"}] * 4).to_iterable_dataset()
    given = {"one": streamed, "named": DatasetDict(), "dict": {"a": tasks, "b": streamed}}[kind]
    if kind == "named":
        given = DatasetDict({"a": Dataset.from_list([{"prompt": "1 + 1?", "answer": "2"}] * 4)})
    settings = {"per_device_eval_batch_size": 2}
    trainer = recorded_trainer(
        tmp_path, first_is_right, make_tasks_named("a"), trainer={"eval_dataset": given}, **settings
    )
    names = {"one": ["eval_"], "named": ["eval_a_"], "dict": ["eval_a_", "eval_b_"]}[kind]
    for metrics in (trainer.evaluate(), trainer.evaluate(given)):
        assert [name for name in names if f"{name}loss" in metrics] == names
    assert "eval_loss" in trainer.evaluate(tasks)


def test_a_held_out_set_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    bad = Dataset.from_list([{"question": "1 + 1?"}])
    refused(tmp_path, "eval_dataset['b']: the data set lacks the columns ['prompt']", eval_dataset={"b": bad})


@pytest.mark.more
def test_a_stream_is_trained_on_as_its_rows_are(tmp_path: Path) -> None:
    rows = Dataset.from_list([{"prompt": f"{n} + 1?", "answer": str(n + 1), "id": n} for n in range(4)])
    settings = {"max_steps": 2, "shuffle_dataset": False}

    def calls(given: Any) -> list[list[str]]:
        trainer = recorded_trainer(tmp_path, first_is_right, given, **settings)
        trainer.train()
        called: list[list[str]] = trainer.service.calls
        return called

    assert calls(rows.to_iterable_dataset()) == calls(rows) == [["0", "0", "1", "1"], ["2", "2", "3", "3"]]


@pytest.mark.parametrize("setting", [{"redraws": 1}, {"task_sampling": "pass_rate"}, {"asynchronous": {}}])
def test_a_stream_has_no_rows_to_draw_from(setting: dict[str, Any], tmp_path: Path) -> None:
    stream = Dataset.from_list(QUESTIONS).to_iterable_dataset()
    [name] = setting
    refused(tmp_path, f"{name} and an iterable data set exclude one", rows=stream, args=small_args(tmp_path, **setting))


def test_the_first_row_of_a_stream_is_looked_at(tmp_path: Path) -> None:
    def none() -> Any:
        return iter(())

    refused(tmp_path, "the task set is empty", rows=IterableDataset.from_generator(none))
    pictured = Dataset.from_list([{"prompt": "?", "image": "a.png"}]).to_iterable_dataset()
    refused(tmp_path, "has a column 'image'", rows=pictured)


@pytest.mark.more
def test_an_environment_may_give_the_questions(tmp_path: Path) -> None:
    trainer = {"environment_factory": Asking}
    args: dict[str, Any] = {"max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 2}
    made = ReplGRPOTrainer(str(NANO_PATH), small_args(tmp_path, **args), **trainer)
    try:
        made.train()
        [row] = rows_of(made)
    finally:
        made.close()
    assert row["reward"] == 1.0


def test_rows_of_environments_may_have_no_prompts_and_name_known_ones(tmp_path: Path) -> None:
    several = {"a": Asking, "b": Asking}
    rows = Dataset.from_list([{"environment": "a", "level": 1}, {"environment": "b", "level": 2}])
    made = as_dataset(rows, graded=False, has_environment=True)
    tasks = [task_of(row) for row in made]
    assert [(task.id, task.question) for task in tasks] == [("row 0", ""), ("row 1", "")]
    assert [task.metadata["environment"] for task in tasks] == ["a", "b"]
    [first, _] = as_dataset(rows.to_iterable_dataset(), graded=False, has_environment=True)
    assert task_of(first) == tasks[0]
    refused(tmp_path, "no column 'environment'", environment_factory=several)
    unknown = [{**row, "environment": "c"} for row in QUESTIONS]
    refused(tmp_path, "row 0 names the environment 'c'; there are 'a', 'b'", rows=unknown, environment_factory=several)


@pytest.mark.more
def test_sessions_that_nothing_grades_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def warned(function: Any, rows: list[dict[str, Any]], **given: Any) -> list[str]:
        caplog.clear()
        given = {"reward_funcs": function, **given}
        trainer = recorded_trainer(tmp_path, first_is_right, Dataset.from_list(rows), trainer=given)
        with caplog.at_level(logging.WARNING, logger="repl_rl.trainer.grpo"):
            trainer.train()
        return [record.message for record in caplog.records if record.name == "repl_rl.trainer.grpo"]

    [message] = warned(silent, QUESTIONS[:2])
    assert message.startswith("step 1: silent returned None for 4 of 4 sessions, the first of task 'What is ")
    [message] = warned(of_even_levels, QUESTIONS[:2])
    assert message.startswith("step 1: of_even_levels returned None for 2 of 4 sessions")
    assert not warned([silent, zero], QUESTIONS[:2])
    assert not warned(silent, [{**row, "answer": "1"} for row in QUESTIONS[:2]])
    assert not warned(silent, QUESTIONS[:2], grader=lambda task, answer: 0.0)
