"""The secret by which the ranks of a job on several hosts authenticate each other.

It is HOCKET_SECRET if that is set, else a file in the user's home that the first job creates (a *cookie*, as in Erlang
and Jupyter): hosts with a common home need no setup. Ranks of one host need no secret: the kernel reports the user at
the other end of a unix socket (SO_PEERCRED).
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
_STRETCHING = 30_000  # iterations of the hash
_OPEN_TO_ALL = b"HOCKET_INSECURE"
_REMEDY = "set HOCKET_SECRET to the same text of 16 or more characters on all hosts"


@dataclass(frozen=True)
class Secret:
    """A key shared by all ranks of a job.

    Args:
        key: the key; it leaves the process only through a pipe to its own helper.
        origin: file or variable that it comes from, for messages.
    """

    key: bytes = field(repr=False)
    origin: str

    def key_id(self, job: bytes) -> bytes:
        """Return 16 bytes that identify the key within a job; those of another job are unrelated."""
        return self.derive(b"hocket key id", job)[:16]

    def derive(self, purpose: bytes, *parts: bytes) -> bytes:
        """Return a key of 32 bytes for one purpose (HMAC-SHA256, RFC 2104).

        Args:
            purpose: purpose of the key.
            parts: further context of the key, each of any length.
        """
        hashed = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self.key, purpose + b"\0" + hashed, "sha256")


def find_secret() -> Secret:
    """Return this user's secret; create its file if it does not exist.

    Raises:
        BootstrapMismatch: the file cannot be read or created, or other users can read or change it; the message names
            the file or the variable, and a remedy.
    """
    text = os.environ.get("HOCKET_SECRET")
    insecure = os.environ.get("HOCKET_INSECURE", "0")
    if insecure not in ("0", "1", ""):
        raise BootstrapMismatch(f"HOCKET_INSECURE must be 0 or 1, not {insecure!r}")
    if insecure == "1":
        if text is not None:
            raise BootstrapMismatch("HOCKET_SECRET and HOCKET_INSECURE=1 contradict each other: unset one of them")
        warnings.warn(
            "hocket: HOCKET_INSECURE=1: anyone who can connect to the control port of this job can join it, read the "
            "messages of its ranks, and run code as this user",
            stacklevel=1,  # one place, so that Python prints it only once
        )
        return Secret(_OPEN_TO_ALL, "HOCKET_INSECURE=1")
    if text is not None:
        if not _LEAST_TEXT <= len(text) <= _MOST_NBYTES:
            raise BootstrapMismatch(
                f"HOCKET_SECRET must have between {_LEAST_TEXT} and {_MOST_NBYTES} characters, not {len(text)}"
            )
        return Secret(_stretched(text.encode("utf-8", "surrogateescape")), "HOCKET_SECRET")
    try:
        path = secret_path()
        key = _read(path)
        return Secret(_make(path) if key is None else key, str(path))
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        raise BootstrapMismatch(
            f"this job spans hosts, but has no secret to authenticate its ranks: {error}; {_REMEDY}, or "
            "HOCKET_INSECURE=1 to run without authentication"
        ) from error


def _stretched(text: bytes) -> bytes:
    """Derive a key from a text that a person may have chosen: PBKDF2 (RFC 8018), about 10 ms of processor time.

    Anyone can read the id of a job's key and try texts until one matches; each try takes the same time.
    """
    return hashlib.pbkdf2_hmac("sha256", text, b"hocket secret", _STRETCHING)


def secret_path() -> Path:
    """Return the path of the user's secret; raise RuntimeError if the user has no home directory."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration) / "hocket" / "secret"


def _read(path: Path) -> bytes | None:
    """Return the key in the file; None if the file does not exist."""
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
        while len(key) < _NBYTES and time.monotonic() < deadline:  # another process may be writing it
            time.sleep(0.01)
            key += file.read(_MOST_NBYTES + 1 - len(key))
    if not _NBYTES <= len(key) <= _MOST_NBYTES:
        raise BootstrapMismatch(
            f"{path} has {'too many' if len(key) > _MOST_NBYTES else len(key)} bytes instead of {_NBYTES} to "
            f"{_MOST_NBYTES}; remove it for a new one, or copy it again"
        )
    return key


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BootstrapMismatch(f"{path} must be a regular file; remove it, or {_REMEDY}")
    if status.st_uid != os.geteuid():
        raise BootstrapMismatch(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}); remove it, or {_REMEDY}"
        )
    if status.st_mode & 0o077:
        raise BootstrapMismatch(
            f"{path} has mode {status.st_mode & 0o777:o}: others can read or change it; for a new one: rm {path}"
        )


def _make(path: Path) -> bytes:
    """Create the file and return its key; if another process is first, return the key of that process."""
    import tempfile  # imported here: rarely needed

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
    """Move the file to its name, unless that exists: the first process wins, and no process reads a partial file."""
    try:
        os.link(name, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links; early readers wait (_read)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return
        with open(fd, "wb") as file:
            file.write(Path(name).read_bytes())
