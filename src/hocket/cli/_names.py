"""The option that names backends."""

from __future__ import annotations

from typing import Annotated

import typer

from hocket.backends import backends_among
from hocket.errors import BackendUnavailable, InvalidArgument

Backends = Annotated[
    str | None,
    typer.Option(
        "--backends", metavar="A,B", show_default=False, help="Backends to use. Default: all that are available."
    ),
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
