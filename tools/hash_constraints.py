"""Add to each line of constraints.txt the SHA-256 of every installable file on PyPI.

Usage: python tools/hash_constraints.py [WHEEL...]

Installable are wheels for Linux on x86-64 and ARM and CPython 3.11 or later, and source archives. WHEEL: further
accepted files, such as the CPU build of PyTorch, which is not on PyPI. `make install` accepts no other files.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import urllib.request
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
TAGS = re.compile(r"(py2\.py3|py3|cp3\d+)-(none|abi3|cp3(1[1-9]))-(any|.*manylinux.*_(x86_64|aarch64).*)\.whl$")
JSON = "application/vnd.pypi.simple.v1+json"


def fits(name: str) -> bool:
    """Return whether the file `name` can be installed on hocket's platforms."""
    return name.endswith((".tar.gz", ".zip")) or bool(TAGS.search(name))


def hashes_of(project: str, version: str) -> list[str]:
    """Return the SHA-256 of the installable files of `project` in `version`."""
    request = urllib.request.Request(f"https://pypi.org/simple/{project}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    of_version = re.compile(rf"[A-Za-z0-9_.-]+?-{re.escape(version)}(-|\.tar\.gz$|\.zip$)")
    return [one["hashes"]["sha256"] for one in files if of_version.match(one["filename"]) and fits(one["filename"])]


def main(wheels: list[Path]) -> None:
    """Rewrite constraints.txt with the hashes of the current index and of `wheels`."""
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    own = {wheel.name.split("-")[0].lower(): hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    lines = []
    for project, version in pins:
        accepted = hashes_of(project, version) + [own[key] for key in [project.lower()] if key in own]
        if not accepted:
            raise SystemExit(f"the index has no installable file of {project} {version}")
        hashes = [f"--hash=sha256:{one}" for one in sorted(set(accepted))]
        lines.append(" \\\n    ".join([f"{project}=={version}", *hashes]))
    CONSTRAINTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
