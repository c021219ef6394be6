"""One rank of `hocket.spawn`: ``python -m hocket.session.spawned FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from hocket.errors import Aborted, CommTimeout, PeerFailure, RemoteError
from hocket.session.world import init


def main(folder: Path) -> None:
    """Run the task in `folder` and write its result, or the first failure, there."""
    settings = json.loads((folder / "settings").read_text())
    sys.path[:] = settings["path"] + [entry for entry in sys.path if entry not in settings["path"]]
    fn, args = cloudpickle.loads((folder / "task").read_bytes())
    comm = init(timeout=settings["timeout_s"])
    try:
        result = fn(comm, *args)
        (folder / f"result-{comm.rank}").write_bytes(cloudpickle.dumps(result))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # for example, a failed pytest.raises is not an Exception
        _write_failure(folder, comm.rank, error)
        raise
    comm.finalize()


def _write_failure(folder: Path, rank: int, error: BaseException) -> None:
    text = f"rank {rank} of hocket.spawn:\n" + "".join(traceback.format_exception(error))
    own = folder / f"failure-{rank}"
    own.write_bytes(_pickled(error, text))
    # Consequences of another rank's failure are shown only if no cause is known.
    if isinstance(error, (PeerFailure, Aborted, CommTimeout)) and os.path.exists(folder / "failure"):
        return
    try:
        os.link(own, folder / "failure")  # the first wins
    except FileExistsError:
        return


def _pickled(error: BaseException, text: str) -> bytes:
    """Pickle the exception; if that fails, pickle a RemoteError with its text."""
    error.add_note(text)
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception as why:
        substitute: Any = RemoteError(f"{type(error).__name__}: {error} (this exception cannot be pickled: {why})")
        substitute.add_note(text)
        data = cloudpickle.dumps(substitute)
    return data


if __name__ == "__main__":
    main(Path(sys.argv[1]))
