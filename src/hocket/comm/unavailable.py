"""Why a backend that an operation names is not there, and what brings it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hocket.backends import declarations, find_backends
from hocket.suggestions import did_you_mean

NOT_ASKED_FOR = "not among the backends asked for"


def why_unavailable(wanted: object, available: Iterable[str], left_out: Mapping[str, str]) -> str:
    """Return the message for a backend that a communicator does not have.

    Args:
        wanted: what the program named.
        available: names of those that the communicator has.
        left_out: why others of the job are not there, by name.

    Example:
        >>> why_unavailable("smh", ["shm"], {})
        "backend 'smh' is not available; this communicator has 'shm'; did you mean 'shm'?"
    """
    text = f"backend {wanted!r} is not available; this communicator has {', '.join(map(repr, available))}"
    if not isinstance(wanted, str):
        return text
    reason = left_out.get(wanted)
    if reason is None and wanted not in declarations():
        return text + did_you_mean(wanted, declarations())
    if reason not in (None, NOT_ASKED_FOR):
        return f"{text}; left out: {reason}"
    library = find_backends().get(wanted)
    obstacle = library.find_obstacle() if library is not None else None
    if obstacle is not None:
        return f"{text}; {wanted} was not asked for, and cannot be had: {obstacle}"
    return f"{text}; hk.init(backends=[..., {wanted!r}]) brings it up"
