"""A small OpenAI-compatible endpoint on this machine, with everything that goes wrong in real ones."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What the endpoint does with a request.

    Attributes:
        content: of the message.
        status: HTTP status.
        body: sent as it is, instead of a chat completion.
        delay: seconds before anything is sent.
        drip: seconds between single bytes of the body.
        headers: further ones.
        hang_up: whether the connection is closed without a word.
    """

    content: str = "Score: 7"
    status: int = 200
    body: bytes | None = None
    delay: float = 0.0
    drip: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False


Behaviour = Callable[[dict[str, Any]], Answer]


class JudgeServer:
    """Listens on a free port of 127.0.0.1.

    Attributes:
        behaviour: decides on each request; called with its body.
        requests: bodies so far, in the order of arrival.
        headers: of these requests.
        most_at_once: largest number of requests that were in work at the same time.
    """

    def __init__(self, behaviour: Behaviour = lambda _: Answer()) -> None:
        self.behaviour = behaviour
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.judge = self
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, args=[0.02], daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def enter(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        return self.behaviour(body)

    def leave(self) -> None:
        with self._lock:
            self._at_once -= 1


@contextlib.contextmanager
def judge_server(behaviour: Behaviour = lambda _: Answer()) -> Iterator[JudgeServer]:
    """A server that is gone behind the block."""
    server = JudgeServer(behaviour)
    try:
        yield server
    finally:
        server.close()


class _Server(ThreadingHTTPServer):
    judge: JudgeServer
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        answer = self.server.judge.enter(body, {k.lower(): v for k, v in self.headers.items()})
        time.sleep(answer.delay)
        # Before the answer leaves: who has it may ask again before this thread runs on.
        self.server.judge.leave()
        if answer.hang_up:
            return
        completion = {
            "choices": [{"message": {"role": "assistant", "content": answer.content}}],
            "usage": {"total_tokens": 30},
        }
        content = json.dumps(completion).encode() if answer.body is None else answer.body
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self._send(content, answer.drip)

    def _send(self, content: bytes, drip: float) -> None:
        with contextlib.suppress(OSError):  # the other side may have given up
            if not drip:
                self.wfile.write(content)
                return
            for place in range(len(content)):
                self.wfile.write(content[place : place + 1])
                time.sleep(drip)

    def do_GET(self) -> None:
        self.server.judge.enter({}, {k.lower(): v for k, v in self.headers.items()})
        self.server.judge.leave()
        self.send_error(405)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
