# From the sdist, whose build asks for nothing but pip: a session of nano.
pip install --quiet torch==2.13.0
pip install --quiet "$SDIST"
repl-rl rollout --model nano --task "What is 6 * 7?" --answer 42 --out session.jsonl
python -c "
from repl_rl import read_jsonl
[session] = read_jsonl('session.jsonl')
assert session.lines and session.outcome_reward is not None, session
"
