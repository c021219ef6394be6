"""Makes mistakes, in one rank, in two, and at the command line, and collects what is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..program import hocket, run_python
from .mistake import Mistake, Outcome

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 60.0

# Each statement has a communicator of its own, as a mistake may spoil it.
_STATEMENTS = """
import json, os, sys
import numpy as np
import hocket as hk
import hocket.collectives, hocket.pipeline

rank = int(os.environ.get("RANK", 0))
world = hk.init(backends=["shm"], timeout=20)
outcomes = []
for statement in json.loads(open("statements.json").read()):
    comm = world.dup()
    kind = message = ""
    try:
        exec(statement, {"hk": hk, "np": np, "comm": comm, "rank": rank, "os": os})
    except Exception as error:
        kind, message = type(error).__name__, str(error)
    outcomes.append([kind, message])
open(f"outcomes-{rank}.json", "w").write(json.dumps(outcomes))
"""


def of_statements(mistakes: Sequence[Mistake], num_ranks: int, folder: Path) -> list[list[Outcome]]:
    """Execute statements one after the other; return the outcomes of each, by rank."""
    (folder / "statements.json").write_text(json.dumps([each.written for each in mistakes]))
    (folder / "statements.py").write_text(_STATEMENTS)
    environment = {**_environment(), "HOCKET_RECORD_DIR": str(folder / "records")}
    if num_ranks == 1:
        done = run_python("statements.py", folder=folder, environment=environment, timeout_s=_TIMEOUT_S)
    else:
        command = ("run", "-n", str(num_ranks), "statements.py")
        done = hocket(*command, folder=folder, environment=environment, timeout_s=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    told = [json.loads((folder / f"outcomes-{rank}.json").read_text()) for rank in range(num_ranks)]
    return [
        [Outcome(kind, _without_places(message, folder)) for kind, message in each] for each in zip(*told, strict=True)
    ]


def of_command(mistake: Mistake, folder: Path) -> Outcome:
    """Run a command, which may begin with variables; what it says is what it writes to stderr."""
    variables, words = {}, mistake.written.split()
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if mistake.program:
        (folder / "program.py").write_text(mistake.program)
    environment = {**_environment(), "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    before = _files(folder)
    run = {"hocket": hocket, "python": run_python}[words[0]]
    done: subprocess.CompletedProcess[str] = run(
        *words[1:], folder=folder, environment=environment, timeout_s=_TIMEOUT_S
    )
    left = tuple(sorted(_files(folder) - before))
    return Outcome(done.returncode, _without_places(done.stderr.strip(), folder), left)


def _environment() -> dict[str, str]:
    """The variables of this process without those that would make it a rank, or another user of hocket."""
    of_others = ("HOCKET_", "RANK", "WORLD_", "LOCAL_", "MASTER_", "PMI_", "OMPI_", "PMIX_", "SLURM_", "MPI4PY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(of_others)}
    return {**kept, "OMP_NUM_THREADS": "1"}


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def _without_places(message: str, folder: Path) -> str:
    """Take out what is different each time: folders, addresses, how long something took."""
    for place in (f"{folder}/", f"{ROOT}/", f"{sys.prefix}/"):
        message = message.replace(place, "")
    message = message.replace(str(folder), "FOLDER")
    message = re.sub(r"0x[0-9a-f]{6,}", "0x...", message)
    message = re.sub(r"(\d\.\d)\d* s\b", r"\1 s", message)
    return re.sub(r"<string>:\d+", "program.py:1", message)
