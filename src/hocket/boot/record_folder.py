"""The default folder for the records of failing ranks."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_JOBS = 50  # jobs whose records are kept


def record_folder(job: str) -> Path:
    """Return the folder for a job's records; it may not exist yet.

    Args:
        job: name of the job.

    Returns:
        ``hocket/records/<job>`` in $XDG_CACHE_HOME or ~/.cache. If neither is writable, a folder in the temporary
        directory that only this user can open.
    """
    return _parent() / job.replace("/", "_")


def forget_old_records() -> None:
    """Remove the records of all jobs except the last 50."""
    with suppress(OSError):
        folders = sorted(_parent().iterdir(), key=lambda each: each.stat().st_mtime)
        for folder in folders[:-MOST_JOBS]:
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    with suppress(RuntimeError, OSError):  # the home directory is unknown or not readable
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        existing = next(each for each in (cache, *cache.parents) if each.exists())
        if cache.is_absolute() and existing.is_dir() and os.access(existing, os.W_OK):
            return cache / "hocket" / "records"
    folder = Path(tempfile.gettempdir()) / f"hocket-records-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="hocket-records-"))  # another user owns the folder with that name
