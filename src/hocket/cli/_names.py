"""Names of backends as an option takes them."""

from __future__ import annotations

from hocket.backends import find_backends
from hocket.errors import InvalidArgument


def read_backends(text: str | None) -> list[str] | None:
    """Return the names in "shm,mpi"; None for none.

    Raises:
        InvalidArgument: one is not known.
    """
    if text is None:
        return None
    known = ["shm", *find_backends()]
    names = text.split(",")
    for name in names:
        if name not in known:
            raise InvalidArgument(f"there is no backend {name!r}; there are {', '.join(known)}")
    return names
