"""Who may read the page: the requests that are refused before anything is looked up, and the headers of every answer.

Any program of this machine reaches a loopback port, and so does any page that a browser of this machine has open: a
hostile one may point a name of its own at 127.0.0.1. So the name under which the page is asked for must be one of this
machine's. From elsewhere, a token is needed as well.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Mapping
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statefx.errors import ConfigError

logger = logging.getLogger("statefx")

METHODS = ("GET", "HEAD")

HOSTS = "STATEFX_UI_HOSTS"
"""More names of the page, with commas between them; in the environment, as a proxy is no matter of the topology."""

OPEN = ("/healthz", "/assets/style.css")
"""Answered without the token: a probe of an orchestrator has none, and is told one word; and how the form looks."""

HEADERS = {
    # Scripts and styles of the page alone; nothing is fetched from elsewhere, framed, or made of text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_NO_STORE = "no-store"

_LOGGED_SECS = 300.0

_SECONDS = 30 * 24 * 3600
"""How long a browser keeps the token."""

_ASKING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>statefx</title><link rel="stylesheet" href="/assets/style.css">
<main class="asking"><h1>A token is needed</h1>
<p>This page is open to other machines. Its address with the token is
<code>query.uiUrl</code>, and in the driver's log.</p>
<form action="/" method="get"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Open</button></form></main></html>
"""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names(host: str) -> frozenset[str]:
    """Return the names under which a page at `host` may be asked for."""
    names = {"localhost", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def given_names(text: str) -> frozenset[str]:
    """Return the names that `HOSTS` gives; ConfigError if one is none, as ``*`` is.

    >>> sorted(given_names("statefx.example.org, Driver"))
    ['driver', 'statefx.example.org']
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if host_of(name) != name or "*" in name:
            raise ConfigError(
                f"{HOSTS}: {name!r} is no name of a host: give names without scheme and port, with commas between "
                "them, such as statefx.example.org"
            )
    return frozenset(names)


def host_of(header: str) -> str | None:
    """Return the name in a Host header, without brackets and port, or None if it is none.

    >>> host_of("localhost:8080"), host_of("[::1]:8080"), host_of("a b"), host_of("user@host")
    ('localhost', '::1', None, None)
    """
    if not header or not header.isascii() or any(each in header for each in "/@\\?# \t,"):
        return None
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
        return parts.hostname
    except ValueError:
        return None


class Door:
    """Middleware: passes on what may be answered.

    Parameters
    ----------
    app : ASGIApp
    host : str
        Where the server listens.
    token : str or None
        Needed by every request but those of `OPEN`; None for a loopback address.
    port : int
        For the name of the cookie: browsers send those of one port to all others of the machine.
    names : frozenset of str
        More names under which the page may be asked for, such as that of a proxy.
    """

    def __init__(
        self, app: ASGIApp, host: str, token: str | None, port: int, names: frozenset[str] = frozenset()
    ) -> None:
        self._app, self._token, self._cookie = app, token, f"statefx-{port}"
        self._logged = float("-inf")
        self._names, self._local = own_names(host) | names, is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":  # a websocket, which nothing here speaks
            return
        headers = Headers(scope=scope)
        answer = self._refused(scope, headers) or self._admitted(scope, headers)
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                known = {name.lower() for name, _ in message["headers"]}
                added = HEADERS | {"cache-control": _NO_STORE}
                more = [(name.encode(), value.encode()) for name, value in added.items() if name.encode() not in known]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            await (answer or self._app)(scope, receive, sent)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the topology goes on
            self._log(scope["path"], error)
            if not begun:
                await said(500, "this went wrong; the driver's log has why")(scope, receive, sent)

    def _log(self, path: str, error: Exception) -> None:
        """Log an error, once in a while: a page that is open asks again each second."""
        if time.monotonic() - self._logged > _LOGGED_SECS:
            self._logged = time.monotonic()
            said = "a request to the page went wrong, which changes nothing for the topology: %s"
            logger.warning(said, path, exc_info=error)

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["method"] not in METHODS:
            return said(405, f"this page only reads: {' and '.join(METHODS)}", {"allow": ", ".join(METHODS)})
        asked = headers.getlist("host")
        host = host_of(asked[0]) if len(asked) == 1 else None
        if host is None or not self._is_own(host):
            known = "this page is not known under that name: ask for it by localhost or by an address, or let the "
            return said(421, f"{known}environment of its process name it in {HOSTS}")
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != asked[0].lower():
            return said(403, "pages of other origins may not read this one")
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and not (mode == "navigate" and scope["path"] == "/"):
            return said(403, "pages of other origins may not read this one")
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether a name leads to this machine, whatever a hostile server of names says."""
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not self._local  # an address can't be pointed elsewhere

    def _admitted(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None for who has the token."""
        if self._token is None or scope["path"] in OPEN:
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = query.pop("token", [])
        if scope["path"] == "/" and len(given) == 1 and self._is_token(given[0]):
            kept = urlencode(query, doseq=True)
            answer = RedirectResponse(f"/?{kept}" if kept else "/", 303)
            # Not strict: who follows a link with the token from a chat would be asked for it again.
            answer.set_cookie(self._cookie, self._token, _SECONDS, httponly=True, samesite="lax")
            return answer
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if (scheme.lower() == "bearer" and self._is_token(secret.strip())) or self._is_token(self._kept(headers)):
            return None
        if scope["path"] == "/":
            return HTMLResponse(_ASKING, 401)
        return said(401, "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})

    def _kept(self, headers: Headers) -> str:
        # By hand: cookies come for all ports of a host, and Python's parser gives up at one of another page's that it
        # does not like.
        pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        return next((value.strip('"') for name, _, value in pairs if name == self._cookie), "")

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())


def said(status: int, what: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as JSON."""
    body = json.dumps({"error": what}).encode()
    return Response(body, status, {**(headers or {})}, media_type="application/json")
