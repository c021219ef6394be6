"""Run a program with one more file in a package of hocket: ``driver.py PACKAGE FOLDER PROGRAM ARGUMENTS``.

PROGRAM is "hocket", for its command line, or a function of `programs.py`, whose result rank 0 prints as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys

# Modules without registries. The native module cannot be loaded twice, and raises the exceptions registered with it.
_KEPT = ("hocket._native", "hocket.discovery", "hocket.errors", "hocket.lazy_names")


def main() -> None:
    package, folder, program, *arguments = sys.argv[1:]
    _forget_hocket()
    importlib.import_module(package).__path__.append(folder)
    if program == "hocket":
        from hocket.cli._command import main as command

        sys.argv = ["hocket", *arguments]
        command()
    result = getattr(importlib.import_module("programs"), program)(*arguments)
    if result is not None:
        print(json.dumps(result))


def _forget_hocket() -> None:
    """Force a new import: in a forked process (`tests/prefork`), registries were filled before the file was added."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "hocket" and name not in _KEPT:
            del sys.modules[name]


if __name__ == "__main__":
    main()
