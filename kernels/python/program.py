"""The kernel program: one Jupyter kernel, one interactive session, started inside the sandbox.

It reads a boot record (JSON) from an inherited descriptor:

    connection     the contents of the Jupyter connection file; its sockets are not bound here, but inherited as
    sockets        listening descriptors: {"shell": 7, "control": 8, "iopub": 9, "stdin": 10, "hb": 11}
    rlimits        {"RLIMIT_CPU": [soft, hard], ...}; RLIMIT_AS is held at its soft value while a cell runs
    uid            the ordinary user to become, or null to stay as started
    lifeline       a descriptor of a pipe that closes with the owner of the kernel
    watches_parent true where no sandbox ends the kernel together with its parent
    site_packages  folders to import third-party packages from

An `execute_reply` carries, next to what the Jupyter protocol asks for, the key "repl_rl" with the status, error name,
compiled flag and answer of the cell. What a cell prints goes to descriptors 1 and 2 as it happens, and once more as a
`stream` message when the cell is done; printed text reaches neither the reply nor the answer.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import select
import signal
import site
import sys

import repl_interpreter
import repl_screen
import slim_imports

KILLED = repl_interpreter.KILLED
_PR_SET_PDEATHSIG = 1
_OWN_MODULES = ("program", "repl_interpreter", "repl_screen", "repl_stack", "repl_syntax", "slim_imports")


def main(boot_descriptor):
    """Confine the process, build the kernel, and serve until a session ends."""
    gc.disable()  # nothing that the imports make is garbage
    with open(boot_descriptor, encoding="utf-8") as file:
        boot = json.load(file)
    _die_with_owner(boot["lifeline"], boot["watches_parent"])
    _confine(boot["rlimits"], boot["uid"])
    sys.path.extend(boot["site_packages"])
    kernelbase, heartbeat, session, zmq = slim_imports.load()
    kernel = _kernel_class(kernelbase)(
        **_channels(zmq, heartbeat, boot),
        session=_session(session, boot["connection"]),
        user_session=_user_session(),
        memory_bytes=boot["rlimits"].get("RLIMIT_AS"),
    )
    _look_like_a_terminal()
    gc.freeze()
    gc.enable()
    kernel.serve()


def _die_with_owner(lifeline, watches_parent):
    """End here if the owner died before anything watched it; from now on its death is a SIGKILL."""
    if watches_parent:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):
        os._exit(1)
    os.close(lifeline)


def _confine(rlimits, uid):
    for name, (soft, hard) in rlimits.items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _look_like_a_terminal():
    """Leave `sys` as `python -i` has it: this folder and its modules out of sight, the working directory importable."""
    site.setquit()
    site.setcopyright()
    site.sethelper()
    sys.argv = [""]
    sys.path[0] = ""
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)


def _silent_log():
    """The kernel's own log must not show up among what the session prints."""
    log = logging.Logger("repl_rl")
    log.addHandler(logging.NullHandler())
    return log


def _user_session():
    return repl_interpreter.Interpreter(repl_screen.Screen(descriptors=(1, 2)))


def _session(session_module, connection):
    return session_module.Session(
        key=connection["key"].encode(), signature_scheme=connection["signature_scheme"], username="kernel"
    )


def _channels(zmq, heartbeat_module, boot):
    """The four sockets that the kernel serves, and the heartbeat's thread running."""
    context = zmq.Context()
    descriptors, connection = boot["sockets"], boot["connection"]

    def serve_on(socket, channel):
        socket.linger = 1000
        socket.setsockopt(zmq.USE_FD, descriptors[channel])
        socket.bind(f"ipc://{connection['ip']}-{connection[channel + '_port']}")

    class Heartbeat(heartbeat_module.Heartbeat):
        def _try_bind_socket(self):
            serve_on(self.socket, "hb")

    sockets = {
        "shell": context.socket(zmq.ROUTER),
        "control": context.socket(zmq.ROUTER),
        "stdin": context.socket(zmq.ROUTER),
        "iopub": context.socket(zmq.PUB),
    }
    for channel, socket in sockets.items():
        serve_on(socket, channel)
    Heartbeat(context, (connection["transport"], connection["ip"], connection["hb_port"])).start()
    return {"sockets": sockets}


def _kernel_class(kernelbase):
    """The kernel, as a subclass of ipykernel's; a function because ipykernel is imported late."""
    from tornado.ioloop import IOLoop
    from zmq.eventloop.zmqstream import ZMQStream

    class ReplKernel(kernelbase.Kernel):
        implementation = "repl_rl"
        implementation_version = "1"
        banner = f"Python {sys.version} on {sys.platform}"
        language_info = {  # noqa: RUF012 - ipykernel declares it so
            "name": "python",
            "version": sys.version.split()[0],
            "mimetype": "text/x-python",
            "file_extension": ".py",
        }

        def __init__(self, sockets, session, user_session, memory_bytes):
            self._loop = IOLoop.current()
            super().__init__(
                session=session,
                shell_stream=ZMQStream(sockets["shell"], self._loop),
                control_stream=ZMQStream(sockets["control"], self._loop),
                iopub_socket=sockets["iopub"],
                stdin_socket=sockets["stdin"],
                log=_silent_log(),
            )
            self._execute_sleep = 0.0
            self._pid = os.getpid()
            self._cell = _CellGuard(memory_bytes)
            self._user_session = user_session

        def serve(self):
            between_cells = repl_screen.Screen(descriptors=(1, 2), limit_bytes=0)
            sys.stdout, sys.stderr = between_cells.stdout, between_cells.stderr
            self.start()
            self._loop.start()
            os._exit(0)

        def pre_handler_hook(self):
            """SIGINT is handled around the cell alone, see `_CellGuard`."""

        post_handler_hook = pre_handler_hook

        @property
        def kernel_info(self):
            """As in the base class, which imports a debugger to find out whether there is one."""
            return {
                "protocol_version": kernelbase.kernel_protocol_version,
                "implementation": self.implementation,
                "implementation_version": self.implementation_version,
                "language_info": self.language_info,
                "banner": self.banner,
                "help_links": self.help_links,
                "supported_features": [],
            }

        async def do_execute(self, code, silent, *_positional, **_named):
            outcome = self._run(code)
            if not silent:
                self._publish(outcome)
            if outcome.status == KILLED:
                self._loop.call_later(0.05, self._loop.stop)
            return _reply(outcome, self.execution_count)

        def _run(self, code):
            try:
                with self._cell:
                    outcome = self._user_session.run(code)
            except KeyboardInterrupt:
                outcome = repl_interpreter.Outcome(repl_interpreter.ERROR, error_name="KeyboardInterrupt")
            if os.getpid() != self._pid:
                os._exit(0)  # a fork made by the cell: at a terminal it would compete for the input, here it ends
            return outcome

        def _publish(self, outcome):
            if outcome.output:
                text = outcome.output.encode("utf-8", "backslashreplace").decode()
                self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": text})
            if outcome.error_name:
                self.send_response(self.iopub_socket, "error", _error_fields(outcome))

        async def do_complete(self, code, cursor_pos):
            word = code[:cursor_pos].rpartition("\n")[2].replace("(", " ").split(" ")[-1]
            from rlcompleter import Completer

            with contextlib.suppress(Exception):
                completer = Completer(self._user_session.namespace)
                matches = completer.attr_matches(word) if "." in word else completer.global_matches(word)
                return _matches(matches, cursor_pos - len(word), cursor_pos)
            return _matches([], cursor_pos, cursor_pos)

        async def do_is_complete(self, code):
            import codeop

            try:
                complete = codeop.compile_command(code, "<stdin>", "single") is not None
            except (SyntaxError, ValueError, OverflowError):
                return {"status": "invalid"}
            return {"status": "complete"} if complete else {"status": "incomplete", "indent": "    "}

        async def do_shutdown(self, restart):
            self._loop.call_later(0.05, self._loop.stop)
            return {"status": "ok", "restart": restart}

    return ReplKernel


class _CellGuard:
    """What holds only while a cell runs: SIGINT raises, memory is limited, and asyncio knows of no loop."""

    def __init__(self, memory_bytes):
        self._memory_bytes = memory_bytes
        self._handler = signal.default_int_handler
        self._policy = asyncio.DefaultEventLoopPolicy()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __enter__(self):
        self._kernel_loop = asyncio._get_running_loop()
        self._kernel_policy = asyncio.get_event_loop_policy()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(self._policy)
        self._limit_memory(0)
        signal.signal(signal.SIGINT, self._handler)

    def __exit__(self, *_exc_info):
        self._handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._limit_memory(1)
        self._policy = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(self._kernel_policy)
        asyncio._set_running_loop(self._kernel_loop)

    def _limit_memory(self, soft_index):
        """After a cell that used up its memory the reply needs some: the soft limit gives way to the hard one."""
        if self._memory_bytes is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_AS, (self._memory_bytes[soft_index], self._memory_bytes[1]))


def _reply(outcome, execution_count):
    reply = {"status": "ok", "execution_count": execution_count, "user_expressions": {}, "payload": []}
    if outcome.status == KILLED:
        reply["payload"] = [{"source": "ask_exit", "keepkernel": False}]
    elif outcome.error_name:
        reply |= {"status": "error", **_error_fields(outcome)}
    names = ("status", "error_name", "compiled", "answer")
    reply["repl_rl"] = {name: getattr(outcome, name) for name in names}
    return reply


def _error_fields(outcome):
    lines = outcome.output.encode("utf-8", "backslashreplace").decode().splitlines()
    return {"ename": outcome.error_name, "evalue": lines[-1] if lines else "", "traceback": []}


def _matches(matches, start, end):
    return {"matches": matches, "cursor_start": start, "cursor_end": end, "metadata": {}, "status": "ok"}
