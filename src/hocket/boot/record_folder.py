"""The default folder for the records that ranks write when they fail."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_JOBS = 50  # whose records are kept


def record_folder(job: str) -> Path:
    """Return the folder for a job's records, which need not be there yet.

    Args:
        job: name of the job.

    Returns:
        ``hocket/records/<job>`` in $XDG_CACHE_HOME or ~/.cache. If neither is writable, a folder in the temporary
        directory that only this user can open.
    """
    return _parent() / job.replace("/", "_")


def forget_old_records() -> None:
    """Remove the records of all jobs but the last 50."""
    with suppress(OSError):
        folders = sorted(_parent().iterdir(), key=lambda each: each.stat().st_mtime)
        for folder in folders[:-MOST_JOBS]:
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    with suppress(RuntimeError, OSError):  # no home is known, or it may not be looked into
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        there = next(each for each in (cache, *cache.parents) if each.exists())
        if cache.is_absolute() and there.is_dir() and os.access(there, os.W_OK):
            return cache / "hocket" / "records"
    folder = Path(tempfile.gettempdir()) / f"hocket-records-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="hocket-records-"))  # somebody else made the folder of that name
