"""A program that has one more file in a package of hocket: ``driver.py PACKAGE FOLDER WHAT ARGUMENTS``.

WHAT is "hocket", whose arguments follow, or the name of a function of `programs.py`, which prints JSON on rank 0.
"""

from __future__ import annotations

import importlib
import json
import sys

# What knows of no registry. The native module cannot be loaded twice, and raises the exceptions that it was given.
_KEPT = ("hocket._native", "hocket.discovery", "hocket.errors", "hocket.lazy_names")


def main() -> None:
    package, folder, what, *arguments = sys.argv[1:]
    _forget_hocket()
    importlib.import_module(package).__path__.append(folder)
    if what == "hocket":
        from hocket.cli._command import main as command

        sys.argv = ["hocket", *arguments]
        command()
    found = getattr(importlib.import_module("programs"), what)(*arguments)
    if found is not None:
        print(json.dumps(found))


def _forget_hocket() -> None:
    """Import it anew: where this process was forked (`tests/prefork`), registries were filled before the file came."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "hocket" and name not in _KEPT:
            del sys.modules[name]


if __name__ == "__main__":
    main()
