# docs/openenv.md: a server, OpenEnv's own validator, and its client.
pip install --quiet torch==2.13.0
pip install --quiet "$WHEEL" "openenv>=0.10,<0.11"
repl-rl serve openenv --port 8765 --size 4 > server.log 2>&1 &
trap 'kill %1; wait %1 || true' EXIT
curl --silent --fail --retry 300 --retry-connrefused --retry-delay 1 --output /dev/null http://127.0.0.1:8765/health
openenv validate --url http://127.0.0.1:8765
python -c "
from openenv.core import GenericEnvClient
with GenericEnvClient(base_url='http://127.0.0.1:8765').sync() as env:
    env.reset(question='What is 17 * 23?', answer='391')
    env.step({'code': 'x = 17 * 23'})
    assert env.step({'code': 'x'}).observation['output'] == '391\n'
    result = env.step({'code': 'submit_final_answer(x)'})
    assert (result.reward, result.done) == (1.0, True), result
"
