"""The page of a run while it is recorded: `hocket observe serve` in a process of its own, beside the program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from hocket.errors import MissingPackage

_END_S = 15.0


@contextmanager
def page_beside(folder: Path, *, stays: bool) -> Iterator[None]:
    """Serve the page of a run that is about to be recorded.

    Args:
        folder: of the run.
        stays: whether the page stays after the run, until Ctrl-C.

    Raises:
        MissingPackage: a package that the page needs is not installed.
    """
    _check_packages()
    with TemporaryDirectory(prefix="hocket-store-") as store:
        command = [sys.executable, "-m", "hocket.cli", "observe", "serve", str(folder), "--store", store, "--json",
                   "--beside"]  # fmt: skip
        # A session of its own: Ctrl-C is for the program. It ends when this process does, which holds its input.
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            Thread(target=_say_address, args=(server,), daemon=True).start()
            yield
            if stays and server.poll() is None:
                print("hocket observe: the page stays until Ctrl-C", file=sys.stderr)
                with suppress(KeyboardInterrupt):
                    server.wait()
        finally:
            _end(server)


def _say_address(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    line = server.stdout.readline()
    if line:
        print(f"hocket observe: the page is at {json.loads(line)['page']}", file=sys.stderr, flush=True)


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("duckdb", "pyarrow", "fastapi", "uvicorn", "httptools", "ibis") if not find_spec(name)]
    if missing:
        raise MissingPackage(f"the page needs {', '.join(missing)}: pip install 'hocket[store]'")
