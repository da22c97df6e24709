"""Gives a Python kernel that is not ours the module `repl_tools` while set-up code runs."""


def set_up(tools, source):  # `tools` is the source of repl_tools.py
    # type: (str, str) -> None
    import sys
    import types

    own = types.ModuleType("repl_tools")
    exec(compile(tools, "<repl_tools>", "exec"), own.__dict__)
    sys.modules["repl_tools"] = own.Tools(sys.modules["__main__"].__dict__).module()
    try:
        exec(compile(source, "<set-up>", "exec"), {"__name__": "setup"})
    finally:
        del sys.modules["repl_tools"]
