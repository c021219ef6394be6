"""The files of the page, which `make page` builds and wheels carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket.observe.serve.requests import RequestRefused

ASSETS = Path(__file__).parent / "assets"
ONE_FILE = ASSETS / "one-file"
"""The same page with one script, for a page that is one file."""
_KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".woff2": "font/woff2",
}  # fmt: skip
MISSING = "hocket was installed without its page: in a clone, `make page` builds it; then install again. Wheels have it"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
}  # fmt: skip


class PageFiles:
    """The files, read once.

    Args:
        folder: that they are in.
    """

    def __init__(self, folder: Path = ASSETS) -> None:
        self._files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in _KINDS and ONE_FILE not in path.parents
        }

    def response(self, name: str) -> Any:
        """Return the answer for a file.

        Raises:
            RequestRefused: there is no such file.
        """
        from starlette.responses import PlainTextResponse, Response

        if name == "index.html" and name not in self._files:
            return PlainTextResponse(MISSING + "; programs can ask v1/\n", 501)
        if name not in self._files:
            raise RequestRefused(404, f"there is nothing at {name[:100]!r}")
        # Names of other files have a hash of their content.
        age = "no-cache" if name == "index.html" else "max-age=31536000, immutable"
        return Response(self._files[name], 200, {**_HEADERS, "cache-control": age}, _KINDS[Path(name).suffix])
