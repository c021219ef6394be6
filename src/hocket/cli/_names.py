"""The option that names backends."""

from __future__ import annotations

from typing import Annotated

from hocket.backends import backends_among
from hocket.cli._verbs import optional
from hocket.errors import BackendUnavailable, InvalidArgument

Backends = Annotated[
    str | None,
    optional("--backends", metavar="A,B", help="Backends to use. Default: all that are available."),
]


def read_backends(text: str | None) -> list[str] | None:
    """Return the names in a text such as "shm,mpi"; None if the option is not given.

    Raises:
        InvalidArgument: a backend is unknown or not available here.
    """
    if text is None:
        return None
    names = text.split(",")
    try:
        adapters = backends_among(names)
    except BackendUnavailable as error:
        raise InvalidArgument(str(error)) from None
    for name in names:
        if name in adapters and (obstacle := adapters[name].find_obstacle()) is not None:
            raise InvalidArgument(f"backend {name!r} is not available: {obstacle}")
    return names
