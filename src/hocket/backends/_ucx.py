"""The UCX objects of a process: one worker, and an endpoint to every rank of the job.

A process has one UCX. MPI's wheels and ucxx each bring one, with the same file names; the one that is loaded first
serves both.
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
_FIRST_ERROR = 2**64 - 100  # a request pointer from here on is an error (UCS_PTR_IS_ERR)
_REQUEST_PARAM_NBYTES = 256  # larger than ucp_request_param_t of any version; all zero: no field is set

_connections: weakref.WeakSet[Worker] = weakref.WeakSet()


def find_obstacle() -> str | None:
    """Return why this process cannot use UCX, or None."""
    missing = [name for name in ("ucxx", "libucx") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install 'hocket[ucx]'" if missing else None


def load() -> Any:
    """Load UCX, unless MPI has loaded it, and return ucxx's module with its classes.

    Raises:
        BackendUnavailable: ucxx cannot be loaded.
    """
    before = set(os.environ)
    other = _find_loaded()
    replaces_libucx = other is not None and "libucx" not in sys.modules
    if replaces_libucx:
        sys.modules["libucx"] = _NothingToLoad("libucx")
    try:
        from ucxx._lib import libucxx
    except (ImportError, OSError) as error:
        raise BackendUnavailable(f"ucxx does not run on {other or 'its own UCX'}: {error}") from error
    finally:
        if replaces_libucx:
            del sys.modules["libucx"]
        # ucxx sets defaults for GPUs; they must not affect MPI's use of UCX.
        for name in os.environ.keys() - before:
            if name.startswith("UCX_"):
                del os.environ[name]
    return libucxx


class _NothingToLoad(ModuleType):
    """A replacement for libucx, whose files cannot be loaded beside others with the same names."""

    @staticmethod
    def load_library() -> list[object]:
        return []


def _find_loaded() -> str | None:
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libucp.so" in line}
    return min(paths, default=None)


def make_worker() -> tuple[Any, Any]:
    ucx = load()
    return ucx, ucx.UCXWorker(ucx.UCXContext({}, (ucx.Feature.TAG,)))


class Worker:
    """A worker of UCX, and endpoints by number."""

    def __init__(self, made: tuple[Any, Any] | None = None) -> None:
        self._ucx, self._worker = made or make_worker()
        self._endpoints: dict[int, Any] = {}
        self.driven = _native.DrivenLibrary(self._worker.progress)
        self.is_closed = False
        _keep_in_forked_children()
        _connections.add(self)

    @property
    def address(self) -> str:
        """What another process needs to reach this one."""
        return base64.b64encode(self._worker.address.tobytes()).decode()

    def connect(self, number: int, address: str) -> None:
        """Make an endpoint to the worker with an address; a wrong address ends the process."""
        # With error handling: without it, UCX ends the process when a peer dies.
        self._endpoints[number] = self._worker.create_endpoint_from_worker_address(
            self._ucx.UCXAddress.create_from_buffer(base64.b64decode(address)), True
        )

    def disconnect(self, number: int) -> None:
        """Forget an endpoint."""
        self._endpoints.pop(number, None)

    @property
    def version(self) -> str:
        return ".".join(map(str, self._ucx.get_ucx_version()))

    def progress(self) -> None:
        """Make progress on all operations in flight."""
        self._worker.progress()

    def is_lost(self, rank: int) -> bool:
        """Return whether the endpoint to a rank of the job has failed."""
        return not self._endpoints[rank].alive

    def send(self, rank: int, tag: int, memory: Any) -> Any:
        """Start to send memory to a rank of the job, and return the request."""
        return self._endpoints[rank].tag_send(self._array(memory), self._ucx.UCXXTag(tag))

    def probe(self, tag: int, mask: int = 2**64 - 1) -> Any:
        """Take the first received message whose tag matches in the bits of the mask; None if no message does."""
        found = self._worker.tag_probe(self._ucx.UCXXTag(tag), self._ucx.UCXXTagMask(mask), True)
        return found if found.matched else None

    def receive(self, found: Any, memory: Any) -> Any:
        """Start to receive a message from `probe` into memory, and return the request."""
        return self._worker.tag_recv_with_handle(self._array(memory), found)

    def close(self, limit_s: float) -> None:
        """Send all pending data, and release all objects.

        Args:
            limit_s: seconds after which unsent data are abandoned; a peer that hangs may not receive them.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self._flush(limit_s):
            self._endpoints.clear()
        else:
            _abandoned.append(self)

    def _flush(self, limit_s: float) -> bool:
        """Wait until all bytes have left this process; False on timeout. A completed request does not ensure this, and
        ucxx has no function for it."""
        ucp = _ucp()
        parameters = (ctypes.c_byte * _REQUEST_PARAM_NBYTES)()
        request = ucp.ucp_worker_flush_nbx(self._worker.handle, ctypes.byref(parameters))
        if not request or request >= _FIRST_ERROR:  # completed at once, or a peer is gone and the flush cannot succeed
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


class Connection(Worker):
    """The worker and the endpoints, by rank, which all lanes of a job share.

    Args:
        job: the job whose ranks are connected; all ranks make this call at the same time.
    """

    def __init__(self, job: BackendJob) -> None:
        super().__init__(job.all_or_none(make_worker))
        addresses = job.exchange(self.address)

        def connect_all() -> None:
            for rank, address in enumerate(addresses):
                self.connect(rank, address)

        job.all_or_none(connect_all)


_abandoned: list[Worker] = []  # UCX may use their memory until the process ends


def _ucp() -> Any:
    library = ctypes.CDLL("libucp.so.0")  # already loaded
    library.ucp_worker_flush_nbx.restype = ctypes.c_uint64
    library.ucp_worker_flush_nbx.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.ucp_request_check_status.argtypes = library.ucp_request_free.argtypes = [ctypes.c_uint64]
    return library


@cache
def _keep_in_forked_children() -> None:
    """Keep connections alive in forked children, which would otherwise close endpoints that the parent uses."""

    def keep() -> None:
        for connection in _connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    os.register_at_fork(after_in_child=keep)
