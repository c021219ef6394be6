"""Build the source archive and manylinux wheels, and try them out: python tools/wheel.py FOLDER [INTERPRETER...].

There is a wheel for the interpreter that runs this script, and for each other one. Wheels are made from the source
archive, so what is missing there shows. Each is installed into an environment of its own, without this checkout in
sight, and has to run a job there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_WHEEL = ("hocket/_native.pyi", "hocket/_native_frames.pyi", "hocket/py.typed", "hocket/cli/run.py",
            "hocket/torch/dist.py",
            "hocket/observe/serve/assets/index.html", "hocket/observe/serve/assets/one-file/index.html")  # fmt: skip
JOB = """
import numpy as np
import hocket as hk
comm = hk.init()
x = np.full(1000, comm.rank + 1.0)
comm.all_reduce(x)
assert (x == 3).all() and "site-packages" in hk.__file__
print("rank", comm.rank, "done")
comm.finalize()
"""


def run(*command: str | Path, **options: object) -> str:
    """Run a command to its end, or exit with what it printed."""
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=900, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def pip(python: Path, *arguments: str | Path, **options: object) -> None:
    """Run this interpreter's pip for another one, which may have none."""
    run(sys.executable, "-m", "pip", "--python", python, *arguments, "--quiet", **options)


def environment_of(interpreter: Path, folder: Path) -> Path:
    """Return the interpreter of a new virtual environment."""
    run(interpreter, "-m", "venv", "--without-pip", folder)
    return folder / "bin/python"


def build_source(folder: Path) -> Path:
    """Return the source archive."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    (source,) = folder.glob("*.tar.gz")
    return source


def build_wheel(python: Path, source: Path, folder: Path) -> Path:
    """Return the wheel of an interpreter, with a manylinux tag."""
    with tempfile.TemporaryDirectory(prefix="hocket-wheel-") as elsewhere:
        include = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])").strip()
        above = Path(include).parent  # Debian's pyconfig.h includes another one from there
        environment = os.environ | ({} if above == Path("/usr/include") else {"CPATH": str(above)})
        pip(python, "wheel", "--no-deps", "--wheel-dir", elsewhere, source, env=environment)
        (plain,) = Path(elsewhere).glob("*.whl")
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(elsewhere) / "repaired", plain)
        (wheel,) = (Path(elsewhere) / "repaired").glob("*manylinux*.whl")
        return Path(shutil.copy(wheel, folder))


def check_contents(source: Path, wheel: Path) -> None:
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    wrong = [name for name in names if name.endswith((".so", ".pyc", ".o")) or name.startswith(("build/", ".venv"))]
    if wrong or "native/core/engine.cpp" not in names or "LICENSE" not in names:
        sys.exit(f"{source.name} has build products, or lacks sources: {(wrong or names)[:20]}")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    missing = [name for name in IN_WHEEL if name not in inside]
    if missing or any(name.startswith(("tests/", "native/")) for name in inside):
        sys.exit(f"{wheel.name} lacks {missing}, or has what does not belong there")


def check_use(wheel: Path, python: Path, folder: Path) -> None:
    pip(python, "install", wheel)
    (folder / "job.py").write_text(JOB)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    hocket = python.with_name("hocket")
    printed = run(hocket, "run", "-n", "2", "job.py", cwd=folder, env=environment)
    if sorted(printed.split()) != sorted(["rank", "0", "done", "rank", "1", "done"]):
        sys.exit(f"the job printed {printed!r}")
    run(hocket, "doctor", cwd=folder, env=environment)


def main(folder: Path, interpreters: list[Path]) -> None:
    source = build_source(folder)
    print(f"{os.path.relpath(source)}: {source.stat().st_size / 1e6:.1f} MB", flush=True)
    for interpreter in interpreters:
        with tempfile.TemporaryDirectory(prefix="hocket-wheel-") as elsewhere:
            python = environment_of(interpreter, Path(elsewhere) / "environment")
            wheel = build_wheel(python, source, folder)
            check_contents(source, wheel)
            check_use(wheel, python, Path(elsewhere))
        print(f"{os.path.relpath(wheel)}: {wheel.stat().st_size / 1e6:.1f} MB, tried out", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), [Path(sys.executable), *map(Path, sys.argv[2:])])
