"""This process's rank and job, from the environment variables of its launcher."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hocket.boot.slurm import is_slurm_task, slurm_local_size
from hocket.errors import BootstrapMismatch

Environ = Mapping[str, str]


@dataclass(frozen=True)
class World:
    """This process's place among all processes of its job.

    Args:
        rank: number of this process, 0 to size - 1.
        size: processes of the job.
        local_rank: number of this process among those of its host, 0 to local_size - 1.
        local_size: processes of the job on this host.
        job: hexadecimal name of the job; equal on all its processes of this host, different from other running jobs.
        job_of_all_hosts: hexadecimal name of the job, from variables that are equal on all hosts.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str
    job_of_all_hosts: str = ""


@dataclass(frozen=True)
class _LauncherVariables:
    """The variables in which one family of launchers passes ranks and sizes."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    identity: Callable[[Environ], str]
    applies: Callable[[Environ], bool] = lambda environ: True
    find_local_size: Callable[[Environ], int | None] = lambda environ: None


def read_world(environ: Environ | None = None) -> World:
    """Return this process's rank and job from the variables of hocket run, torchrun, mpirun, mpiexec or srun.

    The first family in that order whose rank or size variable is set is used; without any, the world has one rank.

    Args:
        environ: the variables; those of this process by default.

    Raises:
        BootstrapMismatch: a variable is missing, is not a number or contradicts another one; the message names it.
    """
    environ = os.environ if environ is None else environ
    for family in _FAMILIES:
        if family.applies(environ) and (family.rank in environ or family.size in environ):
            return _read_family(family, environ)
    if "PMIX_RANK" in environ:
        raise BootstrapMismatch(
            "PMIX_RANK is set, but the number of ranks is not: start the job with mpirun, or with "
            "prterun --personality ompi"
        )
    pid = os.getpid()
    return World(rank=0, size=1, local_rank=0, local_size=1, job=_digest("alone", str(pid), _start_time(pid)))


def meeting_name(world: World, generation: int = 0) -> str:
    """Return the name of the abstract unix socket at which the local ranks of a job meet.

    Args:
        world: the result of `read_world`.
        generation: number of earlier worlds of this process.

    Returns:
        The name without the leading NUL byte; equal on all ranks of the job, different for any other user, job,
        restart or generation.
    """
    return "hocket-" + _digest(str(os.getuid()), world.job, str(generation))


def _read_family(family: _LauncherVariables, environ: Environ) -> World:
    size = _number(environ, family.size, needed_by=family.rank)
    rank = _number(environ, family.rank, needed_by=family.size)
    if size < 1:
        raise BootstrapMismatch(f"{family.size}={size} must be 1 or more")
    if rank >= size:
        raise BootstrapMismatch(f"{family.rank}={rank} must be less than {family.size}={size}")
    local_rank, local_size = _read_local(family, environ, rank, size)
    job_values = [f"{name}={environ.get(name, '')}" for name in _JOB_VARIABLES]
    job = _digest(*job_values, family.identity(environ))
    if size > 1 and family.rank == "RANK" and not any(name in environ for name in _JOB_VARIABLES):
        raise BootstrapMismatch(
            "RANK and WORLD_SIZE are set but MASTER_PORT is not: set MASTER_ADDR and MASTER_PORT, equal on all ranks"
        )
    return World(rank, size, local_rank, local_size, job, _digest(*job_values))


def _read_local(family: _LauncherVariables, environ: Environ, rank: int, size: int) -> tuple[int, int]:
    """Return (local rank, local size); if the launcher sets neither, all ranks are assumed to be on this host."""
    counted = family.find_local_size(environ)
    if family.local_rank not in environ and family.local_size not in environ and counted is None:
        return rank, size
    local_rank = _number(environ, family.local_rank, needed_by=family.local_size)
    if counted is None and family.local_size in environ:
        counted = _number(environ, family.local_size, needed_by=family.local_rank)
    elif counted is None and local_rank == rank:
        counted = size  # many scripts set LOCAL_RANK alone, and on one host it equals RANK
    if counted is None:
        raise BootstrapMismatch(f"{family.local_rank} is set but {family.local_size} is not")
    if counted > size:
        raise BootstrapMismatch(f"{family.local_size}={counted} must not exceed {family.size}={size}")
    if local_rank >= counted:
        raise BootstrapMismatch(f"{family.local_rank}={local_rank} must be less than {family.local_size}={counted}")
    return local_rank, counted


def _number(environ: Environ, name: str, *, needed_by: str) -> int:
    text = environ.get(name)
    if text is None:
        raise BootstrapMismatch(f"{needed_by} is set but {name} is not")
    # not int() alone: it accepts "-1", " 1", "1_0" and digits of other scripts
    if not (text.isascii() and text.isdigit()):
        raise BootstrapMismatch(f"{name}={text!r} must be an integer of 0 or more")
    return int(text)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _named(*names: str) -> Callable[[Environ], str]:
    """Return a function that makes an identity from the variables with these names."""
    return lambda environ: "\0".join(environ.get(name, "") for name in names)


def _process_manager(environ: Environ) -> str:
    """Identify a job of hydra, which exports no job name, by the common ancestor of its local ranks."""
    parent = pid = os.getppid()
    while pid > 1:
        if _process_name(pid).startswith("hydra"):
            return f"{pid}:{_start_time(pid)}"
        pid = _parent(pid)
    return f"{parent}:{_start_time(parent)}"


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (state) on; the second, a name, may contain any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; it distinguishes processes with the same pid."""
    fields = _stat_fields(pid)
    return fields[19] if fields else ""


def _parent(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else 0


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


_JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "HOCKET_JOB")

# Order matters: torchrun may run inside srun or mpiexec, and hydra starts its proxies with srun.
_FAMILIES = (
    _LauncherVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", identity=_named()),
    _LauncherVariables(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        identity=_named("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    ),
    _LauncherVariables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", identity=_process_manager),
    _LauncherVariables(
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NTASKS_PER_NODE",
        identity=_named("SLURM_JOB_ID", "SLURM_STEP_ID"),
        applies=is_slurm_task,
        find_local_size=slurm_local_size,
    ),
)
