"""Names of backends as an option takes them."""

from __future__ import annotations

from hocket.backends import backends_among
from hocket.errors import BackendUnavailable, InvalidArgument


def read_backends(text: str | None) -> list[str] | None:
    """Return the names in "shm,mpi"; None for none.

    Raises:
        InvalidArgument: one is not known.
    """
    if text is None:
        return None
    names = text.split(",")
    try:
        backends_among(names)
    except BackendUnavailable as error:
        raise InvalidArgument(str(error)) from None
    return names
