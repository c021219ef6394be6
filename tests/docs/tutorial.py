"""Tutorials as programs: the files that a page shows, and its commands with what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```([\w-]+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One line behind `$`.

    Attributes:
        line: the command.
        expected: what it prints; ``...`` stands for anything.
        exit_code: 0, or the one in the title of the block.
    """

    line: str
    expected: str
    exit_code: int


def read(page: Path) -> list[tuple[str, str] | Command]:
    """Return files (name, content) and commands in the order of the page."""
    found: list[tuple[str, str] | Command] = []
    for language, options, text in _FENCE.findall(page.read_text()):
        title = (re.search(r'title="([^"]*)"', options) or ["", ""])[1]
        if language in ("console", "shell-session"):  # lines of a shell-session do not wrap on the site
            code = re.search(r"exit code (\d+)", title)
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, expected = part.partition("\n")
                found.append(Command(line, expected, int(code[1]) if code else 0))
        elif title:
            found.append((title, text))
    return found
