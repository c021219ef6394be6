"""Values that rank 0 writes to torch's store, to which other programs may also write."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from hocket.errors import BackendUnavailable, BootstrapMismatch
from hocket.torch import meeting
from hocket.torch.meeting import Meeting, _read, _read_meeting, arrange_meeting

from ..naming import raises


def test_a_meeting_is_read_as_it_was_written() -> None:
    for server in (None, ("node0", 29501)):
        data = json.dumps({"hosts": ["a", "b"], "server": server})
        assert _read_meeting("name", data, 2) == Meeting("name", ["a", "b"], server)


def test_why_there_is_none_is_told() -> None:
    with raises(BootstrapMismatch, names=("rank 0", "port")):
        _read_meeting("name", json.dumps({"error": "port"}), 2)


@pytest.mark.parametrize(
    "text",
    [
        "", "[" * 100_000, "3", "[]", "{}", '{"error": 3}', '{"hosts": ["a", ""]}',
        '{"hosts": ["a"], "server": null}', '{"hosts": ["a", 2], "server": null}', '{"hosts": "ab", "server": null}',
        '{"hosts": ["a", ""], "server": []}', '{"hosts": ["a", ""], "server": ["h", 0]}',
        '{"hosts": ["a", ""], "server": ["h", 65536]}', '{"hosts": ["a", ""], "server": [1, 2]}',
        '{"hosts": ["a", ""], "server": ["h", "1"]}',
        '{"hosts": ["a", "b"], "server": ["h", true]}', json.dumps({"hosts": ["a", "b" * 1025], "server": None}),
    ],
)  # fmt: skip
def test_what_is_no_meeting(text: str) -> None:
    with pytest.raises(BootstrapMismatch):
        _read_meeting("name", text, 2)


@pytest.mark.parametrize("value", [b"x" * 65, b"\xff", b"a\nb", b"\x00"])
def test_a_value_is_bounded_and_printable(value: bytes) -> None:
    store = HashStore()
    store.set("key", value)  # type: ignore[arg-type]  # bytes are taken as well
    with raises(BootstrapMismatch, names=("key",)):
        _read(store, "key", 64)


def test_rank_0_leaves_only_when_the_others_know_why(monkeypatch: pytest.MonkeyPatch) -> None:
    num_read = 0

    def read_slowly(store: Store, key: str, most_nbytes: int) -> str:
        nonlocal num_read
        text = _read(store, key, most_nbytes)
        if "meeting" in key:
            time.sleep(0.1)
            num_read += 1
        return text

    def refuse(hosts: Sequence[str]) -> None:
        raise BackendUnavailable("shm")

    monkeypatch.setattr(meeting, "_read", read_slowly)
    store = HashStore()
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(arrange_meeting, store, 1, 2, 10.0, is_at_master=True, check=refuse)
        with raises(BackendUnavailable, names=("shm",)):
            arrange_meeting(store, 0, 2, 10.0, is_at_master=True, check=refuse)
        assert num_read == 1
        with raises(BootstrapMismatch, names=("rank 0", "shm")):
            other.result(20)
