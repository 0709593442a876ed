"""An OpenAI-compatible chat endpoint, asked over plain HTTP: time limits, retries with back-off, many requests at once.

Asked again: status 408, 425, 429 and 5xx, timeouts, broken connections, bodies that are no chat completion. The wait
doubles from try to try, with jitter, or is what `Retry-After` says. Any other status is an answer and stands.
"""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rollbook.components.rewards.unicode_text import without_surrogates
from rollbook.core.errors import RewardError

T = TypeVar("T")

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
ASK_AGAIN = (408, 425, 429)
HOPELESS = (401, 403, 404)
"""No request of this kind will be answered: the key or the address is wrong."""
LONGEST_WAIT = 60.0
MAX_BYTES = 4 << 20
SHOWN_CHARACTERS = 160


class EndpointDownError(RewardError):
    """The endpoint answers nothing at all, so that asking it more makes no sense."""


@dataclass(frozen=True)
class Reply:
    """What the model said.

    Attributes:
        text: the message's content.
        tokens: of prompt and reply together, as the endpoint counts them; 0 if it does not say.
        seconds: from the first try to the reply, waits included.
        tries: requests it took.
    """

    text: str
    tokens: int
    seconds: float = 0.0
    tries: int = 1


@dataclass(frozen=True)
class ChatEndpoint:
    """Where and how to ask.

    Attributes:
        base_url: up to and with `/v1`.
        api_key: sent as a bearer token; never shown in an error.
        timeout: seconds for one try, from connecting to the last byte.
        retries: further tries after the first.
        first_wait: seconds before the second try.
    """

    base_url: str
    api_key: str | None
    timeout: float
    retries: int
    first_wait: float

    def ask(self, body: Mapping[str, Any], stop: threading.Event | None = None) -> Reply:
        """The reply to one request.

        Args:
            body: the request, as JSON values.
            stop: ends waits between tries when set.

        Raises:
            EndpointDownError: if the key is refused, the address is wrong or nobody listens.
            RewardError: if no try gave a reply.
        """
        stop = stop or threading.Event()
        start = time.monotonic()
        for attempt in range(self.retries + 1):
            try:
                text, tokens = self._try(body)
                return Reply(text, tokens, time.monotonic() - start, attempt + 1)
            except _TryError as failure:
                last = attempt == self.retries
                if last or not failure.ask_again or stop.wait(self._wait(attempt, failure)):
                    tries = f" ({attempt + 1} tries)" if attempt else ""
                    kind = EndpointDownError if failure.down else RewardError
                    raise kind(f"{self.base_url}: {self._without_key(failure)}{tries}") from None
        raise AssertionError("the last try returns or raises")

    def _try(self, body: Mapping[str, Any]) -> tuple[str, int]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode(),
            headers=headers,
            method="POST",
        )
        deadline = time.monotonic() + self.timeout
        try:
            with _opener(self.base_url).open(request, timeout=self.timeout) as response:
                return _reply_in(_read(response, deadline))
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, deadline) from None
        except TimeoutError:
            raise _TryError(f"no reply within {self.timeout:g} s", ask_again=True) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _TryError(f"no reply within {self.timeout:g} s", ask_again=True) from None
            raise _TryError(
                f"cannot be reached: {error.reason}", ask_again=True, down=True
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryError(
                f"the connection broke: {type(error).__name__}", ask_again=True
            ) from None

    def _wait(self, attempt: int, failure: _TryError) -> float:
        doubled = self.first_wait * 2**attempt * random.uniform(0.75, 1.25)
        return min(max(doubled, failure.retry_after), LONGEST_WAIT)

    def _without_key(self, failure: _TryError) -> str:
        """Endpoints may echo the key in what they answer."""
        return str(failure).replace(self.api_key, "…") if self.api_key else str(failure)


def in_threads(
    calls: Sequence[Callable[[threading.Event], T]], threads: int
) -> Iterator[tuple[int, T | Exception]]:
    """Results, or what was raised, with the place of the call, as they come in; at most `threads` calls at once.

    Threads are daemons: a program that ends, or a caller that stops listening, does not wait for them.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()
    stop = threading.Event()
    for place in range(len(calls)):
        todo.put(place)

    def work() -> None:
        while not stop.is_set():
            try:
                place = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((place, calls[place](stop)))
            except Exception as error:
                done.put((place, error))

    for _ in range(min(threads, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in calls:
            yield done.get()
    finally:
        stop.set()


class _TryError(Exception):
    """A try that gave no reply."""

    def __init__(
        self, message: str, ask_again: bool, down: bool = False, retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.ask_again = ask_again
        self.down = down
        self.retry_after = retry_after


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would turn POST into GET and carry the key to another host; it comes back as a status instead."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def _opener(url: str) -> urllib.request.OpenerDirector:
    # A proxy of the environment is for other hosts, and would not find a server on this one.
    local = urlsplit(url).hostname in LOCAL_HOSTS
    proxies = [urllib.request.ProxyHandler({})] if local else []
    return urllib.request.build_opener(_NoRedirect, *proxies)


def _read(response: Any, deadline: float) -> bytes:
    """The body. The socket's own limit starts anew with every byte, so that a slow drip would never meet it."""
    parts, size = [], 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise _TryError(f"sent more than {MAX_BYTES >> 20} MiB", ask_again=False)
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _refusal(error: urllib.error.HTTPError, deadline: float) -> _TryError:
    try:
        said = " ".join(_read(error, deadline).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException, _TryError):
        said = ""
    message = f"status {error.code}{': ' + said[:SHOWN_CHARACTERS] if said else ''}"
    retry_after = error.headers.get("Retry-After", "") if error.headers else ""
    return _TryError(
        message,
        ask_again=error.code in ASK_AGAIN or error.code >= 500,
        down=error.code in HOPELESS,
        retry_after=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0,
    )


def _reply_in(body: bytes) -> tuple[str, int]:
    """Text and tokens of a chat completion."""
    try:
        answer = json.loads(body)
        text = answer["choices"][0]["message"]["content"]
        tokens = (answer.get("usage") or {}).get("total_tokens") or 0
        if not isinstance(text, str) or not isinstance(tokens, int):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shown = " ".join(body[:400].decode("utf-8", "replace").split())[:SHOWN_CHARACTERS]
        raise _TryError(f"did not send a chat completion: {shown!r}", ask_again=True) from None
    return without_surrogates(text), tokens
