"""What nano is shown: right and wrong ways of typing, real outputs, training problems only."""

import hashlib

import pytest

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.tasks import FAMILIES, grade, make_tasks
from studies.nano.demonstrations import IDIOMS
from studies.nano.sessions import load_interpreter, make_sessions

ALL_IDIOMS = [(family, idiom) for family, idioms in IDIOMS.items() for idiom in idioms]


def _answer(idiom, operands):
    interpreter = load_interpreter().PythonInterpreter()
    setup = "\n".join(idiom.setup)
    for source in filter(None, (idiom.needs, setup)):
        interpreter.run(source) if source == idiom.needs else _run_lines(interpreter, source, operands)
    return interpreter.run(f"submit_final_answer({idiom.expression.format(*operands)})").answer


def _run_lines(interpreter, source, operands):
    reader = make_dialect(DialectConfig()).reader()
    for line in source.format(*operands).split("\n"):
        for cell in reader.read(f" {line}\n").cells:
            assert interpreter.run(cell.source).status == "ok"


def test_every_family_has_right_and_wrong_idioms():
    assert list(IDIOMS) == list(FAMILIES)
    assert all({idiom.is_right for idiom in idioms} == {True, False} for idioms in IDIOMS.values())


@pytest.mark.parametrize(("family", "idiom"), ALL_IDIOMS)
def test_right_idioms_are_right_and_wrong_ones_wrong(family, idiom):
    tasks = make_tasks([family], 8, 0, "train")
    grades = [grade(task, _answer(idiom, task.metadata["operands"])) for task in tasks]
    assert grades == [float(idiom.is_right)] * len(tasks)


@pytest.mark.parametrize(("family", "idiom"), [(f, i) for f, i in ALL_IDIOMS if i.needs])
def test_without_its_import_an_idiom_raises_name_error(family, idiom):
    operands = make_tasks([family], 1, 0, "train")[0].metadata["operands"]
    outcome = load_interpreter().PythonInterpreter().run(idiom.expression.format(*operands))
    assert outcome.error_name == "NameError"


def test_nanos_sessions_are_those_that_it_was_built_from():
    """So what they are like (bad policies, right now and then, errors seen) is settled with the model that ships."""
    sessions = make_sessions(50, seed=0)
    texts = "\0".join(segment.text for record in sessions for segment in record.segments)
    assert (
        hashlib.sha256(texts.encode()).hexdigest() == "faf03e633bc06942ba0e3d22d74dab30d8062e0c5ac10dd73ea7ebc68ee756a7"
    )
