"""The process's part in UCX: one worker, and an endpoint to every rank of the job.

A process has one UCX. MPI's wheels bring one, ucxx another, under the same names of files: what is loaded first serves
both.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import os
import sys
import time
import weakref
from functools import cache
from types import ModuleType
from typing import Any

from hocket import _native
from hocket.backends.base import BackendJob
from hocket.errors import BackendUnavailable

_IN_PROGRESS = 1  # UCS_INPROGRESS
_FIRST_ERROR = 2**64 - 100  # what stands for a request is an error from here on (UCS_PTR_IS_ERR)
_REQUEST_PARAM_NBYTES = 256  # more than any version's ucp_request_param_t has; all zero: no field is set

_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def find_obstacle() -> str | None:
    """Return why this process cannot have UCX, or None."""
    missing = [name for name in ("ucxx", "libucx") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install 'hocket[ucx]'" if missing else None


def load() -> Any:
    """Load UCX, unless MPI has done so, and return ucxx's module of its objects.

    Raises:
        BackendUnavailable: that cannot be done.
    """
    before = set(os.environ)
    other = _find_loaded()
    takes_place = other is not None and "libucx" not in sys.modules
    if takes_place:
        sys.modules["libucx"] = _NothingToLoad("libucx")
    try:
        from ucxx._lib import libucxx
    except (ImportError, OSError) as error:
        raise BackendUnavailable(f"ucxx does not run on {other or 'its own UCX'}: {error}") from error
    finally:
        if takes_place:
            del sys.modules["libucx"]
        # ucxx sets defaults for GPUs, which MPI's use of UCX would take over.
        for name in os.environ.keys() - before:
            if name.startswith("UCX_"):
                del os.environ[name]
    return libucxx


class _NothingToLoad(ModuleType):
    """In place of libucx, whose files cannot be loaded beside other ones of their names."""

    @staticmethod
    def load_library() -> list[object]:
        return []


def _find_loaded() -> str | None:
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libucp.so" in line}
    return min(paths, default=None)


def _make_worker() -> tuple[Any, Any]:
    ucx = load()
    return ucx, ucx.UCXWorker(ucx.UCXContext({}, (ucx.Feature.TAG,)))


class Connection:
    """What all lanes of a job share.

    Args:
        job: whose ranks are connected; all of them are in this call.
    """

    def __init__(self, job: BackendJob) -> None:
        self._ucx, self._worker = job.all_or_none(_make_worker)
        addresses = job.exchange(base64.b64encode(self._worker.address.tobytes()).decode())
        self._endpoints = job.all_or_none(lambda: [self._endpoint(address) for address in addresses])
        self.driven = _native.DrivenLibrary(self._worker.progress)
        self.is_closed = False
        _keep_in_forked_children()
        _connections.add(self)

    def _endpoint(self, address: str) -> Any:
        # With error handling: without it UCX ends the process when a peer dies.
        return self._worker.create_endpoint_from_worker_address(
            self._ucx.UCXAddress.create_from_buffer(base64.b64decode(address)), True
        )

    @property
    def version(self) -> str:
        return ".".join(map(str, self._ucx.get_ucx_version()))

    def progress(self) -> None:
        """Drive everything that is under way."""
        self._worker.progress()

    def is_lost(self, rank: int) -> bool:
        """Whether the endpoint to a rank of the job has failed."""
        return not self._endpoints[rank].alive

    def send(self, rank: int, tag: int, memory: Any) -> Any:
        """Start to send memory to a rank of the job, and return the request."""
        return self._endpoints[rank].tag_send(self._array(memory), self._ucx.UCXXTag(tag))

    def probe(self, tag: int, mask: int = 2**64 - 1) -> Any:
        """Take the first message that has come with a tag, as far as the mask goes; None if there is none."""
        found = self._worker.tag_probe(self._ucx.UCXXTag(tag), self._ucx.UCXXTagMask(mask), True)
        return found if found.matched else None

    def receive(self, found: Any, memory: Any) -> Any:
        """Start to receive into memory what `probe` has taken, and return the request."""
        return self._worker.tag_recv_with_handle(self._array(memory), found)

    def close(self, limit_s: float) -> None:
        """Send what is still under way, and let go of everything.

        Args:
            limit_s: seconds after which what has not gone out is given up; a peer that hangs may not take it.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self._flush(limit_s):
            self._endpoints.clear()
        else:
            _given_up.append(self)

    def _flush(self, limit_s: float) -> bool:
        """A request may be over before its bytes have left this process; ucxx has no name for waiting for that."""
        ucp = _ucp()
        parameters = (ctypes.c_byte * _REQUEST_PARAM_NBYTES)()
        request = ucp.ucp_worker_flush_nbx(self._worker.handle, ctypes.byref(parameters))
        if not request or request >= _FIRST_ERROR:  # at once, or a peer is gone: nothing more can be done
            return True
        deadline = time.monotonic() + limit_s
        while ucp.ucp_request_check_status(request) == _IN_PROGRESS:
            if time.monotonic() > deadline:
                return False
            self.progress()
            _native.progress()
        ucp.ucp_request_free(request)
        return True

    @staticmethod
    def _array(memory: Any) -> Any:
        from ucxx._lib.arr import Array

        return Array(memory)


_given_up: list[Connection] = []  # UCX may use their memory as long as the process lives


def _ucp() -> Any:
    library = ctypes.CDLL("libucp.so.0")  # the one that is loaded
    library.ucp_worker_flush_nbx.restype = ctypes.c_uint64
    library.ucp_worker_flush_nbx.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.ucp_request_check_status.argtypes = library.ucp_request_free.argtypes = [ctypes.c_uint64]
    return library


@cache
def _keep_in_forked_children() -> None:
    """A forked child that lets go of endpoints would close what it shares with its parent."""

    def keep() -> None:
        for connection in _connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    os.register_at_fork(after_in_child=keep)
