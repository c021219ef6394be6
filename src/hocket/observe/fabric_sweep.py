"""Counters of all ports of an InfiniBand fabric, with many questions under way at once.

Questions are performance management packets (InfiniBand Architecture Specification, volume 1, 16.1.3.5 PortCounters
and 16.1.4.11 PortCountersExtended), sent through libibumad. Data counters have 64 bits, those of errors 8 or 16 bits,
and stay at their largest value once they reach it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from time import monotonic
from typing import TYPE_CHECKING, Any

from hocket.errors import BackendUnavailable
from hocket.observe.fabric import InfinibandFabric, PortKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LIBRARY = "libibumad.so.3"
_MAD_NBYTES, _DATA_OFFSET = 256, 64
_NUMBER_OFFSET, _STATUS, _USER_STATUS = 12, slice(4, 6), slice(4, 8)
"""In a packet: the lower half of its transaction number, its status; in struct ib_user_mad: what the kernel says."""
_PERFORMANCE, _VERSION, _GET = 4, 1, 1
_PORT_COUNTERS, _EXTENDED = 0x12, 0x1D
_QUEUE_PAIR, _QUEUE_KEY = 1, 0x8001_0000
_TIMEOUT_MS, _RETRIES = 500, 2
_LOST_S = 5.0
"""The kernel answers for every packet, if only that it timed out; without that, a sweep ends."""
DATA = {"sent_nbytes": 8, "received_nbytes": 16, "sent_packets": 24, "received_packets": 32}
"""Data counters and their places; those of bytes count words of 4 bytes."""
ERRORS = {
    "symbol_errors": (4, 2), "link_recoveries": (6, 1), "link_downs": (7, 1), "receive_errors": (8, 2),
    "remote_errors": (10, 2), "relay_errors": (12, 2), "send_discards": (14, 2),
}  # fmt: skip
"""Error counters, their places and lengths in bytes."""
_WAIT = (40, 4)
"""Ticks in which a port had data to send and might not."""
COUNTERS = (*DATA, *ERRORS, "send_waits")
_WORD_NBYTES = 4


@dataclass(frozen=True)
class FabricSweep:
    """The counters of ports at about one time.

    Args:
        at_s: when the sweep began, by the clock of this process.
        seconds: how long it took.
        counters: of each port, its counters by name. NaN: a counter is at its largest value. A port that did not
            answer is missing.

    Examples:
        >>> from hocket import observe
        >>> observe.FabricSweep(0.0, 0.1, {}).counters
        {}
    """

    at_s: float
    seconds: float
    counters: dict[PortKey, dict[str, float]]

    def since(self, before: FabricSweep) -> dict[PortKey, dict[str, float]]:
        """Return how much each counter of each port grew since an earlier sweep; NaN: that is not known.

        A counter that is less than before was reset, or its switch was restarted.
        """
        result = {}
        for key, new in self.counters.items():
            old = before.counters.get(key, {})
            grown = {name: value - old.get(name, nan) for name, value in new.items()}
            result[key] = {name: value if value >= 0 else nan for name, value in grown.items()}
        return result


class FabricCounters:
    """Reads the counters of ports; a context manager, for one thread.

    Args:
        fabric: from `discover_fabric`; its subnet manager must have given LIDs.
        ports: which ports; None: all that have a link.
        most_under_way: so many questions are sent before the first one is answered.

    Raises:
        BackendUnavailable: libibumad is not installed, or this host has no port of InfiniBand.

    Examples:
        >>> from hocket import observe
        >>> try:
        ...     counters = observe.FabricCounters(observe.InfinibandFabric({}, {}, {}))
        ... except hk.BackendUnavailable as error:
        ...     print("no InfiniBand here")
        no InfiniBand here
    """

    def __init__(
        self, fabric: InfinibandFabric, ports: Iterable[PortKey] | None = None, *, most_under_way: int = 64
    ) -> None:
        chosen = [key for key, port in fabric.ports.items() if port.peer] if ports is None else [*ports]
        self._keys = [key for key in chosen if fabric.nodes[key[0]].lid > 0]
        self._lids = [fabric.nodes[guid].lid for guid, _ in self._keys]
        self._most_under_way = most_under_way
        self._library = _load()
        if self._library.umad_init() < 0 or (port := self._library.umad_open_port(None, 0)) < 0:
            raise BackendUnavailable("no port of InfiniBand can be opened: is ib_umad loaded, and may it be used?")
        self._port = port
        self._agent = self._library.umad_register(port, _PERFORMANCE, _VERSION, 0, None)
        if self._agent < 0:
            self._library.umad_close_port(port)
            raise BackendUnavailable("libibumad does not take performance management packets")
        self._stride = self._library.umad_size() + _MAD_NBYTES
        self._questions = [self._prepared(attribute) for attribute in (_EXTENDED, _PORT_COUNTERS)]

    def __enter__(self) -> FabricCounters:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.umad_unregister(self._port, self._agent)
        self._library.umad_close_port(self._port)

    @property
    def num_ports(self) -> int:
        """Number of ports that are asked."""
        return len(self._keys)

    def sweep(self, *, with_errors: bool = True) -> FabricSweep:
        """Ask all ports once.

        Args:
            with_errors: whether to ask for the counters of errors, too; that is a question more for each port.

        Raises:
            BackendUnavailable: packets can no longer be sent, or answers no longer come.
        """
        import numpy as np

        began_s = monotonic()
        data, has_data = self._answers(0)
        columns = {name: _unsigned(data, place, 8).astype(np.float64) for name, place in DATA.items()}
        columns["sent_nbytes"] *= _WORD_NBYTES
        columns["received_nbytes"] *= _WORD_NBYTES
        if with_errors:
            errors, has_errors = self._answers(1)
            for name, (place, nbytes) in {**ERRORS, "send_waits": _WAIT}.items():
                values = _unsigned(errors, place, nbytes).astype(np.float64)
                values[(values == (1 << 8 * nbytes) - 1) | ~has_errors] = nan
                columns[name] = values
        rows = zip(self._keys, has_data.tolist(), zip(*(each.tolist() for each in columns.values()), strict=True),
                   strict=True)  # fmt: skip
        found = {key: dict(zip(columns, values, strict=True)) for key, is_there, values in rows if is_there}
        return FabricSweep(began_s, monotonic() - began_s, found)

    def _prepared(self, attribute: int) -> NDArray[Any]:
        """Packets of one kind for all ports, one after the other."""
        import numpy as np

        packets = np.zeros((len(self._keys), self._stride), np.uint8)
        head = self._library.umad_size()
        for place, ((_, number), lid) in enumerate(zip(self._keys, self._lids, strict=True)):
            self._library.umad_set_addr(packets[place].ctypes.data, lid, _QUEUE_PAIR, 0, _QUEUE_KEY)
            mad = packets[place, head:]
            mad[0], mad[1], mad[2], mad[3] = 1, _PERFORMANCE, _VERSION, _GET
            mad[_NUMBER_OFFSET : _NUMBER_OFFSET + 4] = np.frombuffer(place.to_bytes(4, "big"), np.uint8)
            mad[16:18] = np.frombuffer(attribute.to_bytes(2, "big"), np.uint8)
            mad[_DATA_OFFSET + 1] = number
        return packets

    def _answers(self, question: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The data of all answers by port, and whether each one came."""
        import numpy as np

        packets, count = self._questions[question], len(self._keys)
        received = np.zeros((count, self._stride), np.uint8)
        send, receive, port, agent = self._library.umad_send, self._library.umad_recv, self._port, self._agent
        question_at, answer_at, stride = packets.ctypes.data, received.ctypes.data, self._stride
        length = ctypes.c_int()
        length_at, wait_ms = ctypes.byref(length), int(_LOST_S * 1000)
        num_sent = num_answered = 0
        while num_answered < count:
            while num_sent < count and num_sent - num_answered < self._most_under_way:
                if send(port, agent, question_at + num_sent * stride, _MAD_NBYTES, _TIMEOUT_MS, _RETRIES) < 0:
                    raise BackendUnavailable("performance management packets can no longer be sent")
                num_sent += 1
            length.value = _MAD_NBYTES
            if receive(port, answer_at + num_answered * stride, length_at, wait_ms) < 0:
                missing = num_sent - num_answered
                raise BackendUnavailable(f"{missing} answers of the fabric did not come within {_LOST_S:g} s")
            num_answered += 1
        head = self._library.umad_size()
        mads = received[:, head:]
        numbers = _unsigned(mads, _NUMBER_OFFSET, 4).astype(np.int64)
        is_good = (received[:, _USER_STATUS] == 0).all(1) & (mads[:, _STATUS] == 0).all(1) & (numbers < count)
        answers = np.zeros((count, _MAD_NBYTES - _DATA_OFFSET), np.uint8)
        is_there = np.zeros(count, np.bool_)
        answers[numbers[is_good]] = mads[is_good, _DATA_OFFSET:]
        is_there[numbers[is_good]] = True
        return answers, is_there


def _load() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise BackendUnavailable(f"{_LIBRARY} is not installed: install the package libibumad3") from None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.umad_open_port.argtypes = [ctypes.c_char_p, integer]
    library.umad_register.argtypes = [integer, integer, integer, ctypes.c_uint8, pointer]
    library.umad_set_addr.argtypes = [pointer, integer, integer, integer, integer]
    library.umad_send.argtypes = [integer, integer, pointer, integer, integer, integer]
    library.umad_recv.argtypes = [integer, pointer, pointer, integer]
    return library


def _unsigned(answers: NDArray[Any], place: int, nbytes: int) -> NDArray[Any]:
    import numpy as np

    found = np.zeros(len(answers), np.uint64)
    for offset in range(nbytes):
        found = (found << np.uint64(8)) | answers[:, place + offset]
    return found
