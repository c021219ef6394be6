"""The page as one file that loads nothing: its scripts, its style and the answers that it would ask a server for."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from hocket.errors import InvalidState, MissingPackage
from hocket.observe.serve.opened_results import OpenedResults
from hocket.observe.serve.page_files import MISSING, ONE_FILE
from hocket.observe.serve.requests import json_bytes

_SCRIPT = re.compile(r'<script type="module"[^>]* src="\./([^"]+)"[^>]*></script>')
_STYLE = re.compile(r'<link rel="stylesheet"[^>]* href="\./([^"]+)"[^>]*>')
_LOADED = re.compile(r'(?:src|href)="\./')
_ENDS_SCRIPT = re.compile(r"<(?=/?script|!--)", re.IGNORECASE)
"""In a script, these characters are in texts only; there, this escape means the same."""


def check_page(assets: Path = ONE_FILE) -> None:
    """Check that the page was built.

    Args:
        assets: folder with its files.

    Raises:
        MissingPackage: it was not.
    """
    if not (assets / "index.html").is_file():
        raise MissingPackage(MISSING)


def page_document(
    results: OpenedResults, runs: Mapping[str, Mapping[str, bytes]] | None = None, assets: Path = ONE_FILE
) -> str:
    """Return the page as one HTML file. Its policy allows a browser to load nothing else.

    Args:
        results: files that are shown.
        runs: by their names in a store, the answers of each, as `answers_of` returns them.
        assets: folder with the files of the page.

    Raises:
        MissingPackage: the page was not built.
        InvalidState: the files of the page are of another form.
    """
    check_page(assets)
    page = (assets / "index.html").read_text(encoding="utf-8")
    scripts, styles = _SCRIPT.findall(page), _STYLE.findall(page)
    page = _STYLE.sub("", _SCRIPT.sub("", page))
    if len(scripts) != 1 or _LOADED.search(page) or page.count("</head>") != 1 or page.count("</body>") != 1:
        raise InvalidState(f"{assets / 'index.html'} is not as `make page` builds it: build it again")
    script = _ENDS_SCRIPT.sub(r"\\x3c", (assets / scripts[0]).read_text(encoding="utf-8"))
    style = "".join((assets / each).read_text(encoding="utf-8") for each in styles)
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{known}'; style-src 'unsafe-inline'; img-src data: blob:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />\n<style>{style}</style>\n</head>'
    answers = f'<script type="application/json" id="answers">{_answers(results, runs or {})}</script>'
    body = f'{answers}\n<script type="module">{script}</script>\n</body>'
    before, _, after = page.partition("</head>")
    return before + head + after.replace("</body>", body)


def _answers(results: OpenedResults, runs: Mapping[str, Mapping[str, bytes]]) -> str:
    """The answers by the paths at which a server has them, as JSON that ends no script."""
    found = {"runs": json_bytes({"runs": [*runs], "problems": {}}), "results": json_bytes({"results": results.listed})}
    found |= {f"results/{name}": body for name, body in results.answers.items()}
    for answers in runs.values():
        found |= answers
    parts = [f"{json_bytes(path).decode()}:{body.decode()}" for path, body in found.items()]
    return f"{{{','.join(parts)}}}".replace("<", "\\u003c")
