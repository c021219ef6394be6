"""What a library declares about itself: the facts that other parts of hocket need.

Declarations are read without loading the library: no file of this folder imports a third-party module before a library
is started.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class LinkSpec:
    """The declared speed of messages between two ranks.

    Args:
        latency_s: time of an empty message, in seconds.
        bandwidth_gb_s: bandwidth of a long message, in GB/s.

    Examples:
        >>> from hocket.backends import declarations
        >>> declarations()["mpi"].link
        LinkSpec(latency_s=1e-06, bandwidth_gb_s=5.0)
    """

    latency_s: float
    bandwidth_gb_s: float


@dataclass(frozen=True)
class Finding:
    """The result of one check of `hocket doctor`.

    Args:
        about: subject, in a word or two.
        state: "good"; "note" if something could be better; "problem" if something will not work.
        text: what the check found.
        remedy: how to fix it; empty if the state is "good".

    Examples:
        >>> from hocket.backends import SharedMemory
        >>> finding = next(iter(SharedMemory.diagnose()))
        >>> finding.about, finding.state
        ('shared memory', 'good')
    """

    about: str
    state: Literal["good", "note", "problem"]
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Requirements:
    """The packages that must be installed for a backend.

    Args:
        extra: extra of hocket that installs them, as in ``pip install 'hocket[torch]'``.
        modules: third-party modules, each with the files of this folder that import it, without ".py".

    Examples:
        >>> from hocket.backends import Requirements
        >>> Requirements("fast", {"no_such_module": ("fast",)}).missing()
        "no_such_module is not installed: pip install 'hocket[fast]'"
    """

    extra: str = ""
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return the first missing module and the command that installs it; None if all modules are installed."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed: pip install 'hocket[{self.extra}]'"
        return None


@dataclass(frozen=True)
class Tested:
    """How the test suites test a backend, on a machine without devices.

    Args:
        num_ranks: numbers of ranks for which its results are compared with NumPy.
        one_case_in: 7 means that one of 7 cases of the product of operations, types and sizes is tested.

    Examples:
        >>> from hocket.backends import SharedMemory
        >>> SharedMemory.tested
        Tested(num_ranks=(1, 2, 3, 5), one_case_in=1)
    """

    num_ranks: tuple[int, ...] = (2, 3)
    one_case_in: int = 7


class Declaration:
    """The declarations of a library; all except the name have defaults.

    Examples:
        >>> from hocket.backends import Declaration, LinkSpec
        >>> class Fast(Declaration):
        ...     name = "fast"
        ...     link = LinkSpec(latency_s=1e-6, bandwidth_gb_s=10.0)
        >>> Fast.has_collectives, Fast.is_optional
        (True, False)
        >>> Fast.link_for(num_hosts=2) is None  # nothing is declared between hosts
        True
    """

    name: ClassVar[str]
    """Name of the library in calls and tables."""

    is_optional: ClassVar[bool] = False
    """Whether it is used only when requested by name."""

    has_collectives: ClassVar[bool] = True
    """Whether it has its own collectives; otherwise schedules, which a model chooses, make them from messages."""

    needs_driving: ClassVar[bool] = False
    """Whether it makes progress only while a rank drives it. The tuner measures other libraries beside it."""

    link: ClassVar[LinkSpec | None] = None
    """Speed within a host, by which a model ranks it if nothing was measured. None: it is ranked last, and `hocket
    explain` does not show it without a table."""

    link_between_hosts: ClassVar[LinkSpec | None] = None
    """The same between hosts."""

    launcher: ClassVar[str] = "plain"
    """The launcher of `hocket bench` that starts its ranks."""

    is_virtual: ClassVar[bool] = False
    """Whether it carries only simulated ranks, so that measuring it makes no sense."""

    requires: ClassVar[Requirements] = Requirements()
    """The packages that must be installed for it."""

    left_files: ClassVar[tuple[str, ...]] = ()
    """Patterns of the files that it leaves in /dev/shm if its processes are killed."""

    tested: ClassVar[Tested | None] = Tested()
    """How the common suites test it; None: it has its own tests, because it needs devices or has no real processes."""

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        """Return what `hocket doctor` reports about it, without loading the library; by default nothing."""
        return ()

    @classmethod
    def link_for(cls, num_hosts: int) -> LinkSpec | None:
        """Return the declared link for ranks on this number of hosts."""
        return cls.link if num_hosts == 1 else cls.link_between_hosts


def find_flaw(adapter: type[Declaration]) -> str | None:
    """Return why a class is not a usable adapter, as a clause that follows "that"; None if it is usable.

    Flaws are a missing method, a declaration of a wrong type, and a name that cannot be written in a list of backends,
    where commas separate names and a plus joins two.
    """
    missing = sorted(getattr(adapter, "__abstractmethods__", ()))
    if missing:
        return f"has no {', no '.join(missing)}"
    for attribute, hint in get_type_hints(Declaration).items():
        (declared,) = get_args(hint)
        value: Any = getattr(adapter, attribute, None)
        types = get_args(declared) if isinstance(declared, UnionType) else [declared]
        kinds = [get_origin(each) or each for each in types]
        if not isinstance(value, tuple(kinds)):
            names = " or ".join("None" if each is NoneType else each.__name__ for each in kinds)
            return f"has {attribute} = {value!r}, which must be {names}"
    if not re.fullmatch("[a-z][a-z0-9_:]*", adapter.name):
        return f"is named {adapter.name!r}; a name may have only small letters, digits, _ and :"
    return None


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, or None.

    Examples:
        >>> from hocket.backends import installed_version
        >>> installed_version("no-such-package") is None
        True
    """
    import importlib.metadata  # loaded here, so that `hocket.init` does not wait for it

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
