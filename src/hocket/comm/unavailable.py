"""The message for a backend that an operation names and the communicator does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hocket.backends import declarations, find_backends
from hocket.suggestions import did_you_mean

NOT_ASKED_FOR = "not among the backends asked for"


def why_unavailable(backend: object, available: Iterable[str], left_out: Mapping[str, str]) -> str:
    """Return the message for a backend that a communicator does not have: the reason, and a remedy.

    Args:
        backend: the name in the call.
        available: names of the communicator's backends.
        left_out: other backends of the job by name, each with the reason why it is not available.

    Examples:
        >>> why_unavailable("smh", ["shm"], {})
        "backend 'smh' is not available; this communicator has 'shm'; did you mean 'shm'?"
    """
    text = f"backend {backend!r} is not available; this communicator has {', '.join(map(repr, available))}"
    if not isinstance(backend, str):
        return text
    reason = left_out.get(backend)
    if reason is None and backend not in declarations():
        return text + did_you_mean(backend, declarations())
    if reason not in (None, NOT_ASKED_FOR):
        return f"{text}; left out: {reason}"
    library = find_backends().get(backend)
    obstacle = library.find_obstacle() if library is not None else None
    if obstacle is not None:
        return f"{text}; {backend} was not requested, and is not usable: {obstacle}"
    return f"{text}; start it with hk.init(backends=[..., {backend!r}])"
