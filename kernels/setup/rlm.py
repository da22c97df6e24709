"""For `environment: rlm`: `answer`, `FINAL`, `FINAL_VAR` and `SHOW_VARS`, which are back after every line."""

import repl_tools

import __main__ as session

submit, answer = session.submit_final_answer, {"content": "", "ready": False}
own = set(session.__dict__) | {"answer", "FINAL", "FINAL_VAR", "SHOW_VARS"}


def FINAL(value):  # type: (object) -> None
    "Hand in the final answer."
    submit(value)


def FINAL_VAR(name):  # type: (str) -> None
    "Hand in a variable, given by its name, as the final answer."
    if name not in session.__dict__:
        raise NameError(f"there is no variable {name!r}; SHOW_VARS() lists them, and FINAL(value) takes a value")
    submit(session.__dict__[name])


def SHOW_VARS():  # type: () -> dict[str, str]
    "The names of your variables, and their types."
    names = session.__dict__.items()
    return {name: type(value).__name__ for name, value in names if name not in own and name[0] != "_"}


def watch():  # type: () -> None
    given = session.__dict__.get("answer")
    if given is not answer and type(given) is dict:
        answer.clear()
        answer.update(given)
    if answer.get("ready"):
        submit(answer.get("content", ""))


for name, value in {"answer": answer, "FINAL": FINAL, "FINAL_VAR": FINAL_VAR, "SHOW_VARS": SHOW_VARS}.items():
    repl_tools.bind(name, value)  # type: ignore[attr-defined]  # of the module that Tools.module makes
repl_tools.reserve(*own - {"_", "__annotations__"})  # type: ignore[attr-defined]
repl_tools.hide(*own - {"answer"})  # type: ignore[attr-defined]  # a long context takes long to look through
repl_tools.after_cell(watch)  # type: ignore[attr-defined]
