"""What rank 0 writes to torch's store, which other programs may reach as well."""

from __future__ import annotations

import json

import pytest
from torch.distributed import HashStore

from hocket.errors import BootstrapMismatch
from hocket.torch.meeting import Meeting, _read, _read_meeting

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
