"""The secret by which the ranks of a job on several hosts know each other.

It is $HOCKET_SECRET where that is set, else a file in the user's home that the first job makes (a *cookie*, as Erlang
and Jupyter have): hosts with a common home need nothing from the user. Ranks of one host need no secret: the kernel
says which user the other end of a unix socket is (SO_PEERCRED).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from hocket.errors import BootstrapMismatch

_NBYTES = 32
_MOST_NBYTES = 4096
_WRITING_S = 1.0
_LEAST_TEXT = 16  # characters of HOCKET_SECRET
_STRETCHING = 30_000  # times that it is hashed
_OPEN_TO_ALL = b"HOCKET_INSECURE"
_WAY_OUT = "set HOCKET_SECRET to one text of 16 or more characters on all hosts"


@dataclass(frozen=True)
class Secret:
    """A key that all ranks of a job have.

    Args:
        key: the key itself; it never leaves the process but by a pipe to a helper of its own.
        origin: where it is from, for messages.
    """

    key: bytes = field(repr=False)
    origin: str

    def key_id(self, job: bytes) -> bytes:
        """Return 16 bytes that name the key among those of a job: another job's tell nothing about them."""
        return self.derive(b"hocket key id", job)[:16]

    def derive(self, purpose: bytes, *parts: bytes) -> bytes:
        """Return a key of 32 bytes for one purpose (HMAC-SHA256, RFC 2104).

        Args:
            purpose: of the key.
            parts: whatever else it stands for, each of any length.
        """
        hashed = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self.key, purpose + b"\0" + hashed, "sha256")


def find_secret() -> Secret:
    """Return this user's secret, and make the file that keeps it if there is none.

    Raises:
        BootstrapMismatch: there is none and none can be made, or others can read or change it; the message names the
            file or the variable, and the way out.
    """
    told = os.environ.get("HOCKET_SECRET")
    insecure = os.environ.get("HOCKET_INSECURE", "0")
    if insecure not in ("0", "1", ""):
        raise BootstrapMismatch(f"HOCKET_INSECURE must be 0 or 1, not {insecure!r}")
    if insecure == "1":
        if told is not None:
            raise BootstrapMismatch("HOCKET_SECRET and HOCKET_INSECURE=1 contradict each other: unset one of them")
        warnings.warn(
            "hocket: HOCKET_INSECURE=1: whoever reaches the control port of this job can join it, read what its ranks "
            "tell each other, and run code as this user",
            stacklevel=1,  # so it is said once, whoever asks
        )
        return Secret(_OPEN_TO_ALL, "HOCKET_INSECURE=1")
    if told is not None:
        if not _LEAST_TEXT <= len(told) <= _MOST_NBYTES:
            raise BootstrapMismatch(
                f"HOCKET_SECRET has {len(told)} characters, it must have between {_LEAST_TEXT} and {_MOST_NBYTES}"
            )
        return Secret(_stretched(told.encode("utf-8", "surrogateescape")), "HOCKET_SECRET")
    try:
        path = secret_path()
        found = _read(path)
        return Secret(_make(path) if found is None else found, str(path))
    except (OSError, RuntimeError) as error:  # a RuntimeError where there is no home
        raise BootstrapMismatch(
            f"this job spans hosts, and there is no secret by which its ranks know each other: {error}; {_WAY_OUT}, or "
            "HOCKET_INSECURE=1 to do without"
        ) from error


def _stretched(text: bytes) -> bytes:
    """Make a key of a text that may be one a person made up: PBKDF2 (RFC 8018), about 10 ms of a processor.

    Anyone may hear the id of a job's key, and try texts until one has it; each try takes him as long.
    """
    return hashlib.pbkdf2_hmac("sha256", text, b"hocket secret", _STRETCHING)


def secret_path() -> Path:
    """Return where the user's secret is kept; RuntimeError where the user has no home."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration) / "hocket" / "secret"


def _read(path: Path) -> bytes | None:
    """Return the key in the file; None if there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        _check_owner(path, os.fstat(fd))
        file = open(fd, "rb")  # noqa: SIM115
    except BaseException:
        os.close(fd)
        raise
    with file:
        key = file.read(_MOST_NBYTES + 1)
        deadline = time.monotonic() + _WRITING_S
        while len(key) < _NBYTES and time.monotonic() < deadline:  # it may be being written
            time.sleep(0.01)
            key += file.read(_MOST_NBYTES + 1 - len(key))
    if not _NBYTES <= len(key) <= _MOST_NBYTES:
        raise BootstrapMismatch(
            f"{path} has {'too many' if len(key) > _MOST_NBYTES else len(key)} bytes, it must have between {_NBYTES} "
            f"and {_MOST_NBYTES}; remove it for a new one, or copy it again"
        )
    return key


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BootstrapMismatch(f"{path} must be a regular file; remove it, or {_WAY_OUT}")
    if status.st_uid != os.geteuid():
        raise BootstrapMismatch(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}); remove it, or {_WAY_OUT}"
        )
    if status.st_mode & 0o077:
        raise BootstrapMismatch(
            f"{path} has mode {status.st_mode & 0o777:o}, which lets others read or change it; for a new one: rm {path}"
        )


def _make(path: Path) -> bytes:
    """Make the file; if another process is first, return the key that it made."""
    import tempfile  # for this once

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # mode 600
    try:
        with open(fd, "wb") as file:
            file.write(os.urandom(_NBYTES))
            file.flush()
            os.fsync(fd)
        _put(name, path)
    finally:
        os.unlink(name)
    key = _read(path)
    if key is None:
        raise BootstrapMismatch(f"{path} was removed while this rank was reading it")
    return key


def _put(name: str, path: Path) -> None:
    """Give the file its name, unless there is one of that name: the first wins, and nobody reads half of it."""
    try:
        os.link(name, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links; who reads too early waits (_read)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return
        with open(fd, "wb") as file:
            file.write(Path(name).read_bytes())
