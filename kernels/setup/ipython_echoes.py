"""For the dialect `ipython`: echoed values stand between two marks, in IPython and in our kernel."""


def mark_echoes(begin, end):  # type: (str, str) -> None
    import builtins
    import sys

    def marked(text):  # type: (str) -> str
        return begin + ("\n" if "\n" in text else "") + text + "\n" + end

    shell = getattr(builtins, "get_ipython", lambda: None)()
    if shell is None:

        def displayhook(value):  # type: (object) -> None
            if value is not None:
                builtins._ = None  # type: ignore[attr-defined]  # as `sys.displayhook` does
                text = repr(value)
                sys.stdout.write(marked(text))
                builtins._ = value  # type: ignore[attr-defined]  # as `sys.displayhook` does

        sys.displayhook = displayhook
        return
    hook = shell.displayhook
    write = hook.write_format_data

    def write_format_data(data, md_dict=None):  # type: (dict[str, str], object) -> None
        write({**data, "text/plain": marked(data.get("text/plain", ""))}, md_dict)

    hook.write_format_data = write_format_data
