"""An OpenAI-compatible server whose model follows a script: real HTTP, no model."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[list[str]], str | None]
"""From what the model has been shown, user messages only, to its next message; None: the server fails."""


class JsonHandler(BaseHTTPRequestHandler):
    """Answers in JSON, and says nothing."""

    def answer(self, content: Any, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[JsonHandler]) -> Iterator[str]:
    """The address of a server that answers with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serve(script: Script) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The server's base URL, and the requests that it has got so far."""
    requests: list[dict[str, Any]] = []

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(request)
            reply = script([message["content"] for message in request["messages"] if message["role"] == "user"])
            self.answer({"error": {"message": "out of order"}}, 500) if reply is None else self.answer(_chat(reply))

    with serving(Handler) as address:
        yield f"{address}/v1", requests


def _chat(content: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
