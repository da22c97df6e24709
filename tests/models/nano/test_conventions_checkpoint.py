"""The checkpoint that knows five conventions, as it ships: loads, speaks the chat template, solves in each of them."""

import json

import pytest
from transformers import AutoTokenizer

from repl_rl.config import load_config
from repl_rl.dialect import make_dialect
from repl_rl.engine import load_vocabulary
from repl_rl.models.nano import SHIPPED
from repl_rl.rollout import reward_table, score
from repl_rl.rollout.episode import make_prompt
from repl_rl.rollout.service import open_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import grade, make_tasks
from studies.conventions.study import CONFIG
from studies.nano.sessions import texts_of
from studies.nano.writers import CHAT_TEMPLATE, END_OF_TURN, WRITERS, render_chat

TOKENIZER = AutoTokenizer.from_pretrained(SHIPPED["nano-conventions"])
VOCABULARY = load_vocabulary(str(SHIPPED["nano-conventions"]))


def test_a_text_ends_with_either_of_two_tokens():
    ends = json.loads((SHIPPED["nano-conventions"] / "generation_config.json").read_text())["eos_token_id"]
    assert [TOKENIZER.decode([end]) for end in ends] == ["<|endoftext|>", END_OF_TURN]
    assert set(ends) == VOCABULARY.eos_ids


def test_the_shipped_template_renders_as_the_sessions_were_made():
    assert TOKENIZER.chat_template == CHAT_TEMPLATE
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"<": 1}}}]
    assert VOCABULARY.render_chat(messages, tools, opens=True) == render_chat(messages, tools, True)
    assert render_chat(messages, tools, True) == (
        '<|im_start|>system\ns\n{"type": "function", "function": {"name": "f", "parameters": {"<": 1}}}<|im_end|>\n'
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )


def test_calls_and_results_stand_in_the_template_as_hermes_has_them():
    dialect = make_dialect(
        load_config(CONFIG, (f"dialect.name={texts_of('tool_call')}",)).dialect, template=render_chat
    )
    assert dialect.form.opening == "<tool_call>"
    assert dialect.form.closing == "</tool_call>"
    assert dialect.frame(1) == (
        "<|im_end|>\n<|im_start|>tool\n<tool_response>",
        "</tool_response><|im_end|>\n<|im_start|>assistant\n",
    )


@pytest.mark.parametrize("name", WRITERS)
def test_prompts_are_short(name):
    config = load_config(CONFIG, (f"dialect.name={texts_of(name)}",))
    dialect = RolloutSetup(VOCABULARY, config.dialect, context_tokens=1000).dialect_with(())
    prompt = make_prompt(dialect, VOCABULARY, "What is 1234 * 5678?", chat=True)
    assert len(prompt.ids) < 60


def test_tags_are_tokens_and_yet_text_and_the_marks_of_turns_are_mere_text_in_outputs():
    for tag in ("<fn>", "</fn>", "<fn_results>", "<tool_call>", "</tool_response>"):
        assert VOCABULARY.decode(VOCABULARY.encode_output(tag)) == tag
        assert len(VOCABULARY.encode_output(tag)) == 1
    assert len(VOCABULARY.encode_frame(END_OF_TURN)) == 1
    assert len(VOCABULARY.encode_output(END_OF_TURN)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "text"])
def test_the_start_solves_some_of_40_problems_in_every_dialect_with_tools(name):
    config = load_config(
        CONFIG, (f"dialect.name={texts_of(name)}", "engine.backend=transformers", "kernel.size=8", "engine.places=40")
    )
    tasks = make_tasks(None, 40, seed=1, split="heldout")
    with open_service(config) as service:
        made = service.generate(tasks, config.sampling.seeded("start"))
    scored = score(tasks, made, grade, reward_table(config.rewards, config.credit), 0)
    solved = sum(item.trajectory.outcome_reward == 1.0 for item in scored)
    answered = sum(trajectory.answer is not None for trajectory in made)
    assert 0 < solved < 40
    assert answered >= 36
