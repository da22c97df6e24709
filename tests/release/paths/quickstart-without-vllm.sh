# The same where vLLM is not installed: the engine is transformers.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL"
repl-rl train quickstart
repl-rl eval quickstart --model runs/quickstart --problems 64 --json figures.json
python -c "
import json
[row] = json.load(open('figures.json'))['rows']
assert row['pass_at']['1']['value'] > 0.8, row
"
