"""What distributed asks of a protocol, found in its classes: each part is here, and takes what its own takes."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest

distributed = pytest.importorskip("distributed")

from distributed.comm import tcp  # noqa: E402
from distributed.comm.core import BaseListener, Comm, Connector, Listener  # noqa: E402
from distributed.comm.registry import Backend, get_backend  # noqa: E402

from hocket.dask.backend import HocketBackend, MPIBackend  # noqa: E402
from hocket.dask.comm import HocketComm  # noqa: E402
from hocket.dask.connector import HocketConnector  # noqa: E402
from hocket.dask.listener import HocketListener  # noqa: E402

PAIRS = [
    (HocketComm, tcp.TCP, Comm),
    (HocketConnector, tcp.TCPConnector, Connector),
    (HocketListener, tcp.TCPListener, Listener),
    (HocketBackend, tcp.TCPBackend, Backend),
]


@pytest.mark.parametrize(("ours", "theirs", "interface"), PAIRS, ids=lambda each: each.__name__)
def test_every_method_takes_what_distributeds_takes(ours: type, theirs: type, interface: type) -> None:
    assert issubclass(ours, interface) and not ours.__abstractmethods__
    names = [name for name in vars(interface) if name[0] != "_"]
    assert names
    for name in names:
        method = inspect.getattr_static(theirs, name)
        if not inspect.isfunction(method):
            continue
        wanted, found = (inspect.signature(getattr(each, name)).parameters for each in (theirs, ours))
        kinds = [[(each.name, each.kind) for each in of.values()] for of in (wanted, found)]
        assert kinds[0] == kinds[1] or any(each.kind is each.VAR_KEYWORD for each in found.values()), name
    assert issubclass(HocketListener, BaseListener)


def test_entry_points() -> None:
    found = {each.name: each.load() for each in importlib.metadata.entry_points(group="distributed.comm.backends")}
    assert found["hocket"] is HocketBackend and found["mpi"] is MPIBackend
    assert isinstance(get_backend("mpi"), MPIBackend)


def test_attributes_that_distributed_reads_of_listeners_and_connections() -> None:
    """Some are not in the classes of the interface: they are looked for in its source."""
    root = Path(distributed.__file__).parent
    source = "".join((root / name).read_text() for name in ("core.py", "worker.py", "scheduler.py", "comm/core.py"))
    of_listeners = set(re.findall(r"\blistener\.([a-z_]+)", source))
    assert {"prefix", "contact_address"} <= of_listeners
    listener = HocketBackend().get_listener("127.0.0.1:0", print, True)
    for name in of_listeners - {"contact_address", "listen_address"}:
        assert hasattr(listener, name), name
    of_comms = set(re.findall(r"\bcomm\.(_[a-z]+_addr)\b", source))
    assert of_comms
    init = inspect.getsource(HocketComm.__init__)
    assert all(f"self.{name}" in init for name in of_comms)


def test_options_of_listeners() -> None:
    theirs, ours = (inspect.signature(each.__init__).parameters for each in (tcp.TCPListener, HocketListener))
    names = {each.name for each in theirs.values() if each.kind is each.POSITIONAL_OR_KEYWORD} - {"comm_handler"}
    assert names <= set(ours)
