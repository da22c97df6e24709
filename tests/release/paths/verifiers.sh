# docs/hub/verifiers: the package for Prime's hub, played by verifiers' own command; a script stands in for the model.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL" "verifiers>=0.4,<0.5"
pip install --quiet --no-deps "$CHECKOUT/docs/hub/verifiers"
cat > model.py <<'PY'
import sys
import time

sys.path.append(sys.argv[1])
from chat_server import serve

with serve(lambda shown: "submit_final_answer(6 * 7)" if len(shown) > 1 else "x = 6") as (url, _):
    print(url, flush=True)
    time.sleep(1000)
PY
echo '{"question": "What is 6 * 7?", "answer": "42"}' > problems.jsonl
python model.py "$CHECKOUT/tests/integrations" > url &
trap 'kill %1' EXIT
until test -s url; do sleep 0.1; done
export KEY=none
vf-eval repl-rl-env --env.agent.harness.id repl-rl-env --env.taskset.problems "$PWD/problems.jsonl" --no-rich \
  --model scripted --client.base-url "$(cat url)" --client.api-key-var KEY -n 1 -o out
python -c "
import json, pathlib
[results] = pathlib.Path('out').rglob('traces.jsonl')
[trace] = json.loads(results.read_text())['traces']
assert trace['rewards']['answered']['score'] == 1.0, trace['rewards']
"
