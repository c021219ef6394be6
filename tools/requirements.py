"""Print the requirements of this project and its extras, one per line, to install them before a build.

Usage: python tools/requirements.py EXTRA...
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the dependencies with those of `extras`; an extra may include others of this project: ``hocket[a,b]``."""
    lines = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", line)
            lines += requirements(project, own[1].split(",")) if own else [line]
    return list(dict.fromkeys(lines))


if __name__ == "__main__":
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    print("\n".join(requirements(pyproject["project"], sys.argv[1:])))
