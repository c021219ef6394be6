"""What a library says of itself, beside how it carries operations: everything that other rooms have to know of it.

Declarations are read without the library: no file of this folder imports a third-party module before one is started.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class LinkSpec:
    """What a backend needs for a message between two ranks.

    Args:
        latency_s: of an empty one, in seconds.
        bandwidth_gb_s: of a long one, in GB/s.
    """

    latency_s: float
    bandwidth_gb_s: float


@dataclass(frozen=True)
class Finding:
    """One thing that `hocket doctor` looked at.

    Args:
        about: what, in a word or two.
        state: "good"; "note", if something could be better; "problem", if something will not work.
        text: what was found.
        remedy: what to do about it; empty where it is good.
    """

    about: str
    state: Literal["good", "note", "problem"]
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Requirements:
    """What has to be installed for a backend.

    Args:
        extra: of hocket that brings it, as in ``pip install 'hocket[torch]'``.
        modules: third-party modules, each with the files of this folder that import it, without ".py".
    """

    extra: str = ""
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return which module is not installed and the command that installs it; None if all are there."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed: pip install 'hocket[{self.extra}]'"
        return None


@dataclass(frozen=True)
class Tested:
    """How the test suites take a backend, on a machine without devices.

    Args:
        num_ranks: numbers of ranks that it is compared with NumPy for.
        one_case_in: of the many cases of the product of operations, types and sizes, how many are skipped.
    """

    num_ranks: tuple[int, ...] = (2, 3)
    one_case_in: int = 7


class Declaration:
    """What a library declares; all of it has defaults, but for the name."""

    name: ClassVar[str]
    """By which calls and tables name it."""

    is_optional: ClassVar[bool] = False
    """Whether it is used only when requested by name."""

    has_collectives: ClassVar[bool] = True
    """Whether it has any of its own; otherwise they are made of messages, by schedules that a model chooses."""

    needs_driving: ClassVar[bool] = False
    """Whether its operations go on only while a rank drives it. The tuner measures others beside such a library."""

    link: ClassVar[LinkSpec | None] = None
    """By which a model ranks it within a host where nothing was measured; None: it is ranked last, and not spoken of by
    `hocket explain` where there is no table."""

    link_between_hosts: ClassVar[LinkSpec | None] = None
    """The same between hosts."""

    launcher: ClassVar[str] = "plain"
    """The launcher of `hocket bench` that starts its ranks."""

    is_virtual: ClassVar[bool] = False
    """Whether it carries simulated ranks, and nothing that could be measured."""

    requires: ClassVar[Requirements] = Requirements()
    """What has to be installed for it."""

    left_files: ClassVar[tuple[str, ...]] = ()
    """Patterns of the files that it leaves in /dev/shm when its processes are killed."""

    tested: ClassVar[Tested | None] = Tested()
    """How it is tested; None: it needs devices, or is no way between processes, and has tests of its own."""

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        """Return what `hocket doctor` says of it, without loading the library; nothing by default."""
        return ()

    @classmethod
    def link_for(cls, num_hosts: int) -> LinkSpec | None:
        """Return the declared link between ranks on so many hosts."""
        return cls.link if num_hosts == 1 else cls.link_between_hosts


def find_flaw(adapter: type[Declaration]) -> str | None:
    """Return why a class cannot be used as it is, as what follows "that", or None.

    A part of it is missing, something that it declares is of another type, or its name could not be written where
    backends are named: two names with a plus between are both at once, and commas separate them.
    """
    missing = sorted(getattr(adapter, "__abstractmethods__", ()))
    if missing:
        return f"has no {', no '.join(missing)}"
    for attribute, hint in get_type_hints(Declaration).items():
        (wanted,) = get_args(hint)
        value: Any = getattr(adapter, attribute, None)
        kinds = [get_origin(each) or each for each in (get_args(wanted) if isinstance(wanted, UnionType) else [wanted])]
        if not isinstance(value, tuple(kinds)):
            names = " or ".join("None" if each is NoneType else each.__name__ for each in kinds)
            return f"has {attribute} = {value!r}, which must be {names}"
    if not re.fullmatch("[a-z][a-z0-9_:]*", adapter.name):
        return f"is named {adapter.name!r}; a name is small letters, digits, _ and :"
    return None


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
