"""What rank 0 writes to torch's store, which other programs may reach as well."""

from __future__ import annotations

import json

import pytest

from hocket.errors import BootstrapMismatch
from hocket.torch.meeting import Meeting, _read_meeting

from ..naming import raises


def test_a_meeting_is_read_as_it_was_written() -> None:
    for server in (None, ("node0", 29501)):
        data = json.dumps({"hosts": ["a", "b"], "server": server}).encode()
        assert _read_meeting("name", data, 2) == Meeting("name", ["a", "b"], server)


def test_why_there_is_none_is_told() -> None:
    with raises(BootstrapMismatch, names=("rank 0", "port")):
        _read_meeting("name", json.dumps({"error": "port"}).encode(), 2)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"[" * 100_000, b"3", b"[]", b"{}", b'{"error": 3}', b'{"hosts": ["a", "b"]}',
        b'{"hosts": ["a"], "server": null}', b'{"hosts": ["a", 2], "server": null}', b'{"hosts": "ab", "server": null}',
        b'{"hosts": ["a", "b"], "server": []}', b'{"hosts": ["a", "b"], "server": ["h", 0]}',
        b'{"hosts": ["a", "b"], "server": ["h", 65536]}', b'{"hosts": ["a", "b"], "server": [1, 2]}',
        b'{"hosts": ["a", "b"], "server": ["h", "1"]}',
    ],
)  # fmt: skip
def test_what_is_no_meeting(data: bytes) -> None:
    with pytest.raises(BootstrapMismatch):
        _read_meeting("name", data, 2)
