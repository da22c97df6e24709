"""For the dialect `inline`: values are echoed as `print` shows them, in IPython and in our kernel."""


def print_echoes():  # type: () -> None
    import builtins
    import sys

    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is not None:
        shell.displayhook.compute_format_data = lambda value: ({"text/plain": str(value)}, {})
        return

    def displayhook(value):  # type: (object) -> None
        if value is not None:
            builtins._ = None  # type: ignore[attr-defined]  # as `sys.displayhook` does
            sys.stdout.write(f"{value}\n")
            builtins._ = value  # type: ignore[attr-defined]  # as `sys.displayhook` does

    sys.displayhook = displayhook


print_echoes()
del print_echoes
