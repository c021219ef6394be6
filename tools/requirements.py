"""Print the requirements of this project and its extras, one a line, so that they can be installed before it is built.

Usage: python tools/requirements.py EXTRA...
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the dependencies and those of `extras`; an extra may name others of this project: ``hocket[a,b]``."""
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", line)
            found += requirements(project, own[1].split(",")) if own else [line]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    print("\n".join(requirements(pyproject["project"], sys.argv[1:])))
