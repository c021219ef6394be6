"""Build the source archive and a manylinux wheel, and test them: python tools/wheel.py FOLDER.

The wheel is built from the source archive, so the build fails if files are missing there. The test installs it into a
new environment, without access to this checkout, and runs a job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_WHEEL = ("hocket/_native.pyi", "hocket/py.typed", "hocket/cli/run.py", "hocket/torch/dist.py")
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
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=900, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build and return the source archive and the wheel made from it."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (source,) = folder.glob("*.tar.gz")
    (plain,) = folder.glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, plain)
    plain.unlink()
    (wheel,) = folder.glob("*manylinux*.whl")
    return source, wheel


def check_contents(source: Path, wheel: Path) -> None:
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    wrong = [name for name in names if name.endswith((".so", ".pyc", ".o")) or name.startswith(("build/", ".venv"))]
    if wrong or "native/core/engine.cpp" not in names or "LICENSE" not in names:
        sys.exit(f"{source.name} contains build products or lacks sources: {(wrong or names)[:20]}")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    missing = [name for name in IN_WHEEL if name not in inside]
    if missing or any(name.startswith(("tests/", "native/")) for name in inside):
        sys.exit(f"{wheel.name} lacks {missing}, or contains files of tests/ or native/")


def check_use(wheel: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", folder / "venv")
    python, hocket = folder / "venv/bin/python", folder / "venv/bin/hocket"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    (folder / "job.py").write_text(JOB)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    output = run(hocket, "run", "-n", "2", "job.py", cwd=folder, env=environment)
    if sorted(output.split()) != sorted(["rank", "0", "done", "rank", "1", "done"]):
        sys.exit(f"unexpected output of the job: {output!r}")
    run(hocket, "doctor", cwd=folder, env=environment)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    source, wheel = build(folder)
    check_contents(source, wheel)
    with tempfile.TemporaryDirectory(prefix="hocket-wheel-") as elsewhere:
        check_use(wheel, Path(elsewhere))
    for path in (source, wheel):
        print(f"{os.path.relpath(path)}: {path.stat().st_size / 1e6:.1f} MB, tested")


if __name__ == "__main__":
    main()
