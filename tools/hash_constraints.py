"""Write beside each line of constraints.txt the SHA-256 of every file that may be installed, as PyPI has them.

Usage: python tools/hash_constraints.py [WHEEL...]

Files are those for Linux on x86-64 and ARM and for any CPython from 3.11 on, and source archives. WHEEL: files of your
own that are accepted besides, such as the build of PyTorch for CPUs, which PyPI does not have. `make install` then
accepts no other file.
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
    """Return whether the file called `name` can be installed where hocket runs."""
    return name.endswith((".tar.gz", ".zip")) or bool(TAGS.search(name))


def hashes_of(project: str, version: str) -> list[str]:
    """Return the SHA-256 of the fitting files of `project` in `version`."""
    request = urllib.request.Request(f"https://pypi.org/simple/{project}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    of_version = re.compile(rf"[A-Za-z0-9_.-]+?-{re.escape(version)}(-|\.tar\.gz$|\.zip$)")
    return [one["hashes"]["sha256"] for one in files if of_version.match(one["filename"]) and fits(one["filename"])]


def main(wheels: list[Path]) -> None:
    """Rewrite constraints.txt with the hashes of today's index and of `wheels`."""
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    own = {wheel.name.split("-")[0].lower(): hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    lines = []
    for project, version in pins:
        found = hashes_of(project, version) + [own[key] for key in [project.lower()] if key in own]
        if not found:
            raise SystemExit(f"the index has no file of {project} {version} that fits")
        hashes = [f"--hash=sha256:{one}" for one in sorted(set(found))]
        lines.append(" \\\n    ".join([f"{project}=={version}", *hashes]))
    CONSTRAINTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
