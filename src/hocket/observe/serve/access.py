"""Who may ask a server: whoever has its token, under a name of this host, and not from a page of another origin."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from hocket.errors import InvalidArgument
from hocket.observe.serve.requests import RequestRefused

TOKEN_FILE = "token"
SESSION_S = 12 * 3600.0
CODE_S = 60.0
"""A browser that is not there so soon needs the token."""
_COOKIE = "hocket-session"
_BEARER = b"Bearer "
_MOST_SESSIONS = 1000
_SAFE_METHODS = ("GET", "HEAD")


class Access:
    """Checks requests.

    A program sends the token with every request. A browser sends it once, and then a cookie that scripts cannot read
    and that pages of other origins cannot use. The browser that a command opens has a code in place of the token,
    because other users of the host can read what it was started with: the code opens one session, within `CODE_S`. When
    it comes again in that time, one of both was not that browser, and the session ends.

    Args:
        token: that requests must have.
        hosts: names and addresses that requests may use for this host.
        code: that opens one session; "": none does.
    """

    def __init__(self, token: str, hosts: tuple[str, ...], code: str = "") -> None:
        self._token = token.encode()
        self._hosts = hosts
        self._code = code.encode()
        self._code_until_s = monotonic() + CODE_S
        self._session_of_code: str | None = None
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def check(self, scope: Mapping[str, Any], *, needs_token: bool) -> None:
        """Check a request.

        Args:
            scope: of ASGI.
            needs_token: whether the answer says anything of the store.

        Raises:
            RequestRefused: it is not allowed; says why.
        """
        headers = dict(scope["headers"])
        name = headers.get(b"host", b"").decode("latin-1")
        host = _without_port(name)
        # A page can make a name of its own mean this host, and then ask as if it came from here; but not an address.
        if host not in self._hosts and host.strip("[]") != (scope.get("server") or ("",))[0]:
            raise RequestRefused(421, f"this server is not called {host[:100]!r}: --name adds a name")
        if not needs_token:
            return
        given = headers.get(b"authorization", b"")
        if hmac.compare_digest(given, _BEARER + self._token):
            return
        if given or not self._has_session(headers):
            raise RequestRefused(
                401, "the token is missing, wrong or expired: the address that the server has printed has it"
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site", b"same-origin")
        is_other = (origin and urlsplit(origin).netloc.lower() != name.lower()) or site not in (b"same-origin", b"none")
        if is_other or (not origin and scope["method"] not in _SAFE_METHODS):
            raise RequestRefused(403, f"pages of another origin may not ask: {origin[:100] or 'it is not named'}")

    def open_session(self, scope: Mapping[str, Any], path: str, is_secure: bool) -> str:
        """Return the cookie of a browser that has shown the token, or the code.

        Args:
            scope: of ASGI.
            path: of the page.
            is_secure: whether the browser uses HTTPS.

        Raises:
            RequestRefused: it has shown neither, or the code was used before; says why.
        """
        has_code = self._shows_code(scope)
        self.check(scope, needs_token=not has_code)
        now = monotonic()
        while self._sessions and (len(self._sessions) >= _MOST_SESSIONS or next(iter(self._sessions.values())) < now):
            self._sessions.popitem(last=False)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + SESSION_S
        if has_code:
            self._session_of_code = session
        attributes = f"Path={path}; HttpOnly; SameSite=Strict; Max-Age={int(SESSION_S)}"
        return f"{_COOKIE}={session}; {attributes}{'; Secure' if is_secure else ''}"

    def _shows_code(self, scope: Mapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        is_code = bool(self._code) and hmac.compare_digest(given, _BEARER + self._code)
        if not is_code or monotonic() >= self._code_until_s:
            return False
        if self._session_of_code is not None:
            self._sessions.pop(self._session_of_code, None)
            raise RequestRefused(
                401,
                "this address was used twice, so nobody may use it any more: take the one that the server has printed",
            )
        return True

    def _has_session(self, headers: Mapping[bytes, bytes]) -> bool:
        for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == _COOKIE and self._sessions.get(value, 0.0) > monotonic():
                return True
        return False


def read_token(folder: Path) -> str:
    """Return the token of a store; it is made when it is first asked for, readable by its user only.

    Raises:
        InvalidArgument: the file can be read by others, or has no token.
    """
    path = folder / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidArgument(f"{path} can be read by others: chmod 600 it, or remove it for a new one") from None
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < 20:
        raise InvalidArgument(f"{path} has no token of at least 20 characters: remove it for a new one")
    return token


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower()
