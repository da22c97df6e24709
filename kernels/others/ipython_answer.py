# Defines `submit_final_answer` in kernels that are built on IPython. A cell: a docstring here would be the session's.


def submit_final_answer(answer, mime):  # `answer` is the source of repl_answer.py
    # type: (str, str) -> object
    import linecache
    import types

    from IPython import get_ipython

    get_ipython().history_manager.enabled = False
    own = types.ModuleType("repl_answer")
    exec(compile(answer, "<repl_answer>", "exec"), own.__dict__)
    publish, show, text, length = get_ipython().display_pub.publish, repr, str, 10_000
    form, submitted = own.form, own.submitted

    def submit_final_answer(value, *values):  # type: (object, *object) -> None
        """Hand in the final answer; this ends the session."""
        __tracebackhide__ = True
        texts, forms = [], []  # type: list[str], list[object]
        for each in [submitted(each) for each in (value, *values)]:
            texts.append(text(show(each).encode("utf-8", "backslashreplace"), "utf-8")[:length])
            cells = [""]
            if type(each) is types.FunctionType:
                cells = ["".join(linecache.getlines(each.__code__.co_filename))]
            forms.append(form(each, texts[-1], cells) if len(forms) < 100 else None)
        publish({mime: {"values": texts, "forms": forms}})

    submit_final_answer.__module__ = "builtins"
    submit_final_answer.__qualname__ = "submit_final_answer"
    return submit_final_answer
