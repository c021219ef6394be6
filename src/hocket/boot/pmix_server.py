"""A PMIx server: the process manager that Open MPI needs, so that the ranks of one host start as one job.

A separate program, started when a rank requests it. It uses Open MPI's own library (OpenPMIx, PMIx_server_* of the PMIx
standard), which has threads and a loopback listener that checks the user of each client by the kernel. On one host,
ranks only need to be registered: the library does their fences itself.

It reads its task as one line from standard input, answers with one line, reports each MPI_Init, MPI_Finalize and
MPI_Abort of a rank in one line, and exits at the end of its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hocket.boot.mpi_variables import OPEN_MPI_FOLDER

_SUCCEEDED = (0, -157)  # PMIX_SUCCESS, PMIX_OPERATION_SUCCEEDED: completed immediately
_STRING, _UINT16, _UINT32, _DATA_ARRAY, _RANK = 3, 13, 14, 39, 40  # pmix_data_type_t
_CTYPES: dict[int, Any] = {_UINT16: ctypes.c_uint16, _UINT32: ctypes.c_uint32, _RANK: ctypes.c_uint32}
_MEMORY = "/dev/shm"
_MOST_CALLBACKS = 64  # of pmix_server_module_t; the first are client_connected, client_finalized and abort
_DONE = -157


class _DataArray(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("size", ctypes.c_size_t), ("array", ctypes.c_void_p))


class _Process(ctypes.Structure):
    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


_EVENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Process), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ABORTED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(_Process),
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_Attribute = tuple[str, Any, int]


class PmixServer:
    """Serves the ranks of one host.

    Args:
        library: path of libpmix.
        size: number of ranks.
        folder: folder for its files.
        report: called with an event of a rank, by a thread of the library.

    Raises:
        OSError: the library cannot be loaded, or a call fails.
    """

    def __init__(self, library: str, size: int, folder: str, report: Callable[[dict[str, int]], object]) -> None:
        self._library = ctypes.CDLL(library)
        self._library.PMIx_Info_list_start.restype = ctypes.c_void_p
        self._namespace = f"hocket-{os.urandom(8).hex()}".encode()
        info = self._attributes([("pmix.srvr.tmpdir", folder, _STRING), ("pmix.sys.tmpdir", folder, _STRING)])
        self._report = report
        # Kept here, so that they live as long as the server.
        self._callbacks = _EVENT(self._on_connected), _EVENT(self._on_finalized), _ABORTED(self._on_aborted)
        pointers = [ctypes.cast(each, ctypes.c_void_p) for each in self._callbacks]
        self._module = (ctypes.c_void_p * _MOST_CALLBACKS)(*pointers)
        self._call("PMIx_server_init", ctypes.byref(self._module), *_parts(info))
        self._register_job(size, folder)
        self.variables = [self._register_rank(rank) for rank in range(size)]
        """Variables for the MPI library of each rank, by rank."""

    def finalize(self) -> None:
        self._library.PMIx_server_finalize()

    def _on_connected(self, process: Any, *_: Any) -> int:
        self._report({"connected": process.contents.rank})
        return _DONE

    def _on_finalized(self, process: Any, *_: Any) -> int:
        self._report({"finalized": process.contents.rank})
        return _DONE

    def _on_aborted(self, process: Any, _: Any, code: int, *__: Any) -> int:
        self._report({"aborted": process.contents.rank, "code": code})
        return _DONE

    def _register_job(self, size: int, folder: str) -> None:
        ranks = ",".join(map(str, range(size)))
        nodes, places = ctypes.c_char_p(), ctypes.c_char_p()
        self._call("PMIx_generate_regex", os.uname().nodename.encode(), ctypes.byref(nodes))
        self._call("PMIx_generate_ppn", ranks.encode(), ctypes.byref(places))
        counts = ("univ.size", "job.size", "local.size", "node.size", "max.size")
        of_job: list[_Attribute] = [(f"pmix.{name}", size, _UINT32) for name in counts]
        of_job += [("pmix.num.nodes", 1, _UINT32), ("pmix.job.napps", 1, _UINT32), ("pmix.lpeers", ranks, _STRING)]
        of_job += [("pmix.jobid", self._namespace, _STRING)]
        of_job += [("pmix.tmpdir", folder, _STRING), ("pmix.nsdir", f"{folder}/job", _STRING)]
        of_job += [("pmix.nmap", nodes.value, _STRING), ("pmix.pmap", places.value, _STRING)]
        for rank in range(size):
            os.makedirs(f"{folder}/job/{rank}")
            of_rank: list[_Attribute] = [
                ("pmix.rank", rank, _RANK),
                ("pmix.appnum", 0, _UINT32),
                ("pmix.nodeid", 0, _UINT32),
            ]
            of_rank += [("pmix.pdir", f"{folder}/job/{rank}", _STRING)]
            of_rank += [("pmix.lrank", rank, _UINT16), ("pmix.nrank", rank, _UINT16)]
            of_job.append(("pmix.pdata", self._attributes(of_rank), _DATA_ARRAY))
        info = self._attributes(of_job)
        self._call("PMIx_server_register_nspace", self._namespace, ctypes.c_int(size), *_parts(info), None, None)

    def _register_rank(self, rank: int) -> dict[str, str]:
        process = ctypes.byref(_Process(self._namespace, rank))
        own = ctypes.c_uint32(os.getuid()), ctypes.c_uint32(os.getgid())
        self._call("PMIx_server_register_client", process, *own, None, None, None)
        strings = ctypes.POINTER(ctypes.c_char_p)()
        self._call("PMIx_server_setup_fork", process, ctypes.byref(strings))
        variables = {}
        index = 0
        while (string := strings[index]) is not None:
            name, _, value = string.decode().partition("=")
            variables[name] = value
            index += 1
        return variables

    def _attributes(self, attributes: Sequence[_Attribute]) -> _DataArray:
        """Return an array of pmix_info_t."""
        chain = ctypes.c_void_p(self._library.PMIx_Info_list_start())
        for key, value, kind in attributes:
            if kind == _STRING:
                pointer: Any = ctypes.c_char_p(value.encode() if isinstance(value, str) else value)
            elif kind == _DATA_ARRAY:
                pointer = ctypes.byref(value)
            else:
                pointer = ctypes.byref(_CTYPES[kind](value))
            self._call("PMIx_Info_list_add", chain, key.encode(), pointer, ctypes.c_uint16(kind))
        array = _DataArray()
        self._call("PMIx_Info_list_convert", chain, ctypes.byref(array))
        return array

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status not in _SUCCEEDED:
            raise OSError(f"{name} returned {status}")


def _parts(array: _DataArray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(array.array), ctypes.c_size_t(array.size)


def _report(event: dict[str, int]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")  # one write, since two threads may report at the same time


def main() -> None:
    task = json.loads(sys.stdin.readline())
    # In memory, since Open MPI creates its shared memory here, which killed ranks do not remove.
    folder = tempfile.mkdtemp(prefix=OPEN_MPI_FOLDER, dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    os.environ["TMPDIR"] = folder  # for other temporary files of the library
    try:
        try:
            server = PmixServer(task["library"], task["size"], folder, _report)
        except (OSError, AttributeError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return
        segments = {"OMPI_MCA_btl_sm_backing_directory": folder}
        print(json.dumps({"variables": [each | segments for each in server.variables]}), flush=True)
        sys.stdin.read()  # until the launcher ends
        server.finalize()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
