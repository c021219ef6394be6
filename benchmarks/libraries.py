"""Jobs of the compared libraries: each library's own launcher starts its ranks, by absolute path."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab import Lab

from hocket.bench.launchers import ENVIRONMENT, mpich_job, openmpi_job, plain_job, wheel_file
from hocket.measure import Job, Process


def lab_job(library: str, lab: Lab, script: str, arguments: Sequence[object], ranks_per_host: int) -> Job:
    """Return the job of one library on the hosts of the laboratory, as `job` does.

    Open MPI uses its launcher; the other libraries run without a launcher.
    """
    argv = _argv(script, library, *arguments)
    if library == "openmpi":
        return _openmpi_lab_job(lab, argv, ranks_per_host)
    commands = lab.rank_commands(argv, ranks_per_host)
    env = {"OMP_NUM_THREADS": "1"}
    return Job(library, len(commands), tuple(Process(tuple(each), {**env, **world}) for each, world in commands))


def _openmpi_lab_job(lab: Lab, argv: Sequence[str], ranks_per_host: int) -> Job:
    job = openmpi_job(argv, ranks_per_host * len(lab.hosts))
    (process,) = job.processes
    options = ["--host", ",".join(f"{host.address}:{ranks_per_host}" for host in lab.hosts)]
    options += ["--prtemca", "plm_ssh_agent", str(lab.remote_shell())]
    options += ["--prtemca", "prte_launch_agent", wheel_file("openmpi", "prted")]
    # The daemon of each host assumes that the host has all processors for itself: waiting ranks would spin on them.
    options += ["--mca", "mpi_yield_when_idle", "1"]
    launcher, *rest = process.argv
    command = [*lab.hosts[0].command([launcher, *options]), *rest]
    return replace(job, processes=(Process(tuple(command), process.env),))


def find_intel_mpi() -> Path | None:
    """Return where Intel MPI is installed, $I_MPI_ROOT or .venv-impi of this checkout; None: it is not installed."""
    root = Path(os.environ.get("I_MPI_ROOT", Path(__file__).parents[1] / ".venv-impi"))
    return root if (root / "bin/mpiexec.hydra").exists() and (root / "lib/libmpi.so.12").exists() else None


def intelmpi_job(argv: Sequence[str], num_ranks: int) -> Job:
    """Return a job under Intel MPI's launcher; requires that `find_intel_mpi` finds it."""
    root = find_intel_mpi()
    library = {
        "I_MPI_ROOT": str(root),
        "I_MPI_PIN": "0",  # the ranks bind themselves, as those of all libraries do
        "LD_LIBRARY_PATH": f"{root}/lib",
        "FI_PROVIDER_PATH": f"{root}/lib/libfabric",
        "MPI4PY_LIBMPI": f"{root}/lib/libmpi.so.12",
    }
    command = (f"{root}/bin/mpiexec.hydra", "-n", f"{num_ranks}")
    return Job("intelmpi", num_ranks, (Process((*command, *argv), {**ENVIRONMENT, **library}),))


def job(library: str, script: str, arguments: Sequence[object], num_ranks: int) -> Job:
    """Return the job of one library; each rank runs ``SCRIPT --rank LIBRARY ARGUMENTS``."""
    argv = _argv(script, library, *arguments)
    job_functions = {"openmpi": openmpi_job, "mpich": mpich_job, "intelmpi": intelmpi_job}
    if library in job_functions:
        return job_functions[library](argv, num_ranks)
    return plain_job(argv, num_ranks, library)


def _argv(script: str, *arguments: object) -> tuple[str, ...]:
    """Return the command of a rank; `script` is a path, or a file name in this folder."""
    return (sys.executable, str(Path(__file__).parent / script), "--rank", *map(str, arguments))
