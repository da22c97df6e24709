# docs/tools.md: a server of tools that MCP's own package makes, called from a session that is typed by hand.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL[mcp]"
cat > words_server.py <<'PY'
from mcp.server.mcpserver import MCPServer

server = MCPServer("words")


@server.tool()
def count(text: str, letter: str = "a") -> int:
    """Count a letter in a text."""
    return text.count(letter)


if __name__ == "__main__":
    server.run()
PY
cat > my.yaml <<'YAML'
model: nano
tools: {mcp: {words: {command: [python, words_server.py], timeout_s: 60}}}
engine: {context_tokens: 1024}
YAML
printf ' n = count("banana")\n submit_final_answer(n)\n' |
  repl-rl play my.yaml --task "How many times does banana have an a?" --answer 3 --out session.jsonl
python -c "
import json
session = json.loads(open('session.jsonl').read())
assert (session['answer'], session['outcome_reward']) == (['3'], 1.0), session
assert [call['name'] for line in session['lines'] for call in line['calls']] == ['count'], session
"
