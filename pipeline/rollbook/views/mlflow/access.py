"""Who may ask MLflow's server: whoever holds the token of this start, from its own pages or from a client.

A port of this machine is open to every account on it and to every page in the owner's browser. The link that `rollbook
ui` prints carries the token; a browser exchanges it for a cookie, and the address without it is what it keeps. Clients
send `Authorization: Bearer …`, as MLflow's does with MLFLOW_TRACKING_TOKEN. No route is exempt.

A cookie alone does not tell the owner's page from another one in the same browser, hence the checks of `Host` (a name
that was rebound to this address), `Origin` and `Sec-Fetch-Site` (pages elsewhere, another port being elsewhere too).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import struct
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Address = tuple[str, int]
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PARAMETER = "token"
"""Of the printed link."""
TOKEN_BYTES = 32
POLICY = "; ".join((
    "default-src 'self'",
    "script-src 'self' 'unsafe-eval'",  # plotly compiles its shaders' arguments; no inline script runs
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "media-src 'self' data: blob:",
    "font-src 'self' data:",
    "worker-src 'self' blob:",
    "frame-src 'self' blob:",
    "form-action 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "frame-ancestors 'self'",
))  # fmt: skip
"""Traces and notes are written by models: what they name elsewhere is not fetched."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOT_OFFERED = (
    "/ajax-api/3.0/mlflow/assistant",
    "/ajax-api/2.0/mlflow/webhooks",
    "/api/2.0/mlflow/webhooks",
)
"""Parts of MLflow that run programs or call addresses elsewhere for whoever asks; nothing here uses them."""
NO_TOKEN = (
    "Open the link that `rollbook ui` printed when it was started last.\n"
    "Clients need MLFLOW_TRACKING_TOKEN (Authorization: Bearer ...), printed there too.\n"
)


def new_token() -> str:
    """A token of one start: 256 random bits, as 43 characters that need no escaping in an address or a shell."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class TokenRequired:
    """Answers itself whatever comes without the token or from elsewhere, and passes on the rest without the token.

    Attributes:
        token: of this start.
        cookie: name of the cookie; cookies do not know ports, so it names the port.
        ticket: what the cookie holds. Servers of others at the same host name get it too if their pages are opened,
            so it is not the token, and no other account of this machine can use it.
        hosts: names, beside addresses and localhost, by which the server may be asked.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, hosts: Collection[str]) -> None:
        self.app = app
        self.token = token.encode()
        self.cookie = f"rollbook_ui_{port}"
        self.ticket = hmac.digest(self.token, b"cookie", "sha256").hex()
        self.hosts = frozenset(name.lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        link = self._in_link(scope)
        refusal = self._refusal(scope, link)
        if refusal is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif refusal is not None:
            await refusal(scope, receive, send)
        else:
            _without_secrets(scope, self.cookie)
            await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, link: Response | None) -> Response | None:
        """The answer, if it is not MLflow's."""
        headers = Headers(scope=scope)
        if not _is_for(headers.getlist("host"), self.hosts):
            return _plain(
                "The Host header names no address of this server.\n", HTTPStatus.FORBIDDEN
            )
        if link is not None:
            return link
        if not self._is_known(scope, headers):
            return _plain(NO_TOKEN, HTTPStatus.UNAUTHORIZED)
        if not _is_from_here(scope, headers):
            return _plain("Pages elsewhere may not ask this server.\n", HTTPStatus.FORBIDDEN)
        if scope["path"].startswith(NOT_OFFERED):
            return _plain(
                "`rollbook ui` does not offer this part of MLflow.\n", HTTPStatus.NOT_FOUND
            )
        return None

    def _in_link(self, scope: Scope) -> Response | None:
        """Takes the token out of the query, which uvicorn logs. If it was the printed link: its answer."""
        given = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        rest = [(name, value) for name, value in given if not self._is_token(value)]
        if len(rest) == len(given):
            return None
        scope["query_string"] = urlencode(rest).encode()
        is_link = scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET"
        if not is_link or not any(name == PARAMETER for name, _ in given):
            return None
        place = f"/?{urlencode(rest)}" if rest else "/"
        answer = Response(
            status_code=HTTPStatus.SEE_OTHER, headers={"Location": place, **_ANSWERED}
        )
        answer.set_cookie(self.cookie, self.ticket, httponly=True, samesite="lax")
        return answer

    def _is_known(self, scope: Scope, headers: Headers) -> bool:
        for value in headers.getlist("authorization"):
            scheme, _, credentials = value.partition(" ")
            if scheme.lower() == "bearer" and self._is_token(credentials.strip()):
                return True
        cookies = [cookie_parser(each).get(self.cookie, "") for each in headers.getlist("cookie")]
        return any(
            hmac.compare_digest(each.encode(errors="surrogateescape"), self.ticket.encode())
            for each in cookies
        ) and not is_of_another_account(scope.get("client"), scope.get("server"))

    def _is_token(self, value: str) -> bool:
        """Takes the same time whatever it is."""
        return hmac.compare_digest(value.encode(errors="surrogateescape"), self.token)


_ANSWERED = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_of_another_account(client: Address | None, server: Address | None) -> bool:
    """Whether a process of another account of this machine, root aside, holds the other end of a connection.

    Linux says so in /proc/net; elsewhere, and of another machine, nothing is known. An end that its process has closed
    belongs to nobody any more and counts as another account's.
    """
    if client is None or server is None or not CONNECTIONS[0].exists():
        return False
    wanted = {(_as_linux(client, wide), _as_linux(server, wide)) for wide in (False, True)}
    for file in CONNECTIONS:
        for line in file.read_text().splitlines()[1:] if file.exists() else ():
            fields = line.split()
            if (fields[1], fields[2]) in wanted:
                return fields[9] == "0" or int(fields[7]) not in (0, os.getuid())
    return ipaddress.ip_address(client[0]).is_loopback


def _as_linux(address: Address, wide: bool) -> str:
    """As /proc/net/tcp has an address, /proc/net/tcp6 if `wide`: words of 32 bits in the order of the machine."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    packed = ip.packed if not wide or ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _plain(text: str, status: HTTPStatus) -> Response:
    challenge = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    return PlainTextResponse(text, status, headers={**_ANSWERED, **challenge})


def _is_for(hosts: Collection[str], known: Collection[str]) -> bool:
    """Whether the request names this server; a name of a stranger's may be rebound to any address, an address not."""
    if len(hosts) != 1:
        return False
    try:
        name = urlsplit(f"//{next(iter(hosts))}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name in known
    return True


def _is_from_here(scope: Scope, headers: Headers) -> bool:
    """Whether no page of another origin asks; what is followed from there to the first page shows nothing to it."""
    host = headers["host"].lower()
    origins = headers.getlist("origin")
    if any(each.lower() not in (f"http://{host}", f"https://{host}") for each in origins):
        return False
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"  # fmt: skip
    return bool(followed and scope["path"] == "/" and scope.get("method") == "GET")


def _without_secrets(scope: Scope, cookie: str) -> None:
    """What MLflow does not get it cannot store, log or pass on."""
    kept = []
    for name, value in scope["headers"]:
        if name == b"cookie":
            others = cookie_parser(value.decode("latin-1"))
            others.pop(cookie, None)
            value = "; ".join(f"{each}={text}" for each, text in others.items()).encode("latin-1")
        if name != b"authorization":
            kept.append((name, value))
    scope["headers"] = kept


def _with_headers(send: Send) -> Send:
    async def answered(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return answered
