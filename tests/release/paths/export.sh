# docs/runs.md: sessions as ATIF and as a log of inspect_ai, each read by the other side.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL" atif inspect-ai
repl-rl eval quickstart --problems 8 -n 2 --out sessions.jsonl
repl-rl export sessions.jsonl --to atif --out atif
repl-rl export sessions.jsonl --to inspect --out logs/sessions.eval
python -c "
import pathlib
import atif
documents = [atif.Trajectory.model_validate_json(path.read_text()) for path in pathlib.Path('atif').glob('*.json')]
assert len(documents) == 16, len(documents)
assert all(document.steps for document in documents)
"
inspect log dump --header-only logs/sessions.eval | python -c "
import json, sys
assert json.load(sys.stdin)['status'] == 'success'
"
inspect view bundle --log-dir logs --output-dir page
test -f page/index.html
