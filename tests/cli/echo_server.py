"""A server on a Unix socket that answers chats with the last message, backwards, one letter a chunk."""

import contextlib
import http.server
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps the requests that it got; a message "slow" makes it speak until the client hangs up."""

    requests: list[dict[str, Any]] = []
    hung_up = threading.Event()

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "echo"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(body)
        text = body.get("prompt") or body["messages"][-1]["content"]
        if text == "fail":
            self._answer(400, {"error": {"message": "no good", "code": None, "param": None}})
            return
        self.send_response(200)
        self.end_headers()
        try:
            self._speak(text)
        except OSError:
            self.hung_up.set()

    def _speak(self, text: str) -> None:
        for letter in text[::-1]:
            self._event(letter)
        while text == "slow":
            self._event(".")
            time.sleep(0.02)
        self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def _event(self, text: str) -> None:
        choice = {"text": text, "delta": {"content": text}}
        self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@contextlib.contextmanager
def serve(path: str) -> Iterator[None]:
    """Run the server on the socket `path` while the context is open."""
    Handler.requests.clear()
    Handler.hung_up.clear()
    server = _Server(path, Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield
    server.shutdown()
    server.server_close()
    thread.join()
