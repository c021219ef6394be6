"""Rows of senders are numbered: what was sent twice is stored once, and nothing is left out."""

from __future__ import annotations

import pytest

from hocket.errors import InvalidArgument
from hocket.observe.store import senders
from hocket.observe.store.interface import IngestAnswer
from hocket.observe.store.senders import SenderNumbers, SenderRows

from ..naming import raises
from .stored_rows import rows_of

pa = pytest.importorskip("pyarrow")
TABLE = "operations"


def piece(first_row: int, num_rows: int, sender: str = "a") -> SenderRows:
    return SenderRows(sender, first_row, rows_of(TABLE, num_rows))


def test_rows_are_claimed_in_order_and_once() -> None:
    numbers = SenderNumbers("run-1", {(TABLE, "a"): 5})
    assert numbers.claim(TABLE, piece(0, 5)) == IngestAnswer(5, 5)  # they are stored
    assert numbers.claim(TABLE, piece(0, 6)) == IngestAnswer(5, 0)  # partly
    assert numbers.claim(TABLE, piece(7, 1)) == IngestAnswer(5, 0)  # after a gap
    assert numbers.claim(TABLE, piece(5, 0)) == IngestAnswer(5, 0)
    assert numbers.claim(TABLE, piece(5, 10)) is None
    assert numbers.claim(TABLE, piece(5, 10)) == IngestAnswer(5, 0, is_pending=True)
    assert numbers.claim(TABLE, piece(15, 3)) is None
    assert numbers.claim("io", piece(0, 2)) is None
    assert numbers.claim(TABLE, piece(0, 2, "b")) is None
    numbers.note_stored(TABLE, piece(5, 10))
    assert numbers.next_row(TABLE, "a") == 15
    assert numbers.claim(TABLE, piece(5, 10)) == IngestAnswer(15, 10)
    numbers.give_up(TABLE, "a")
    assert numbers.claim(TABLE, piece(15, 4)) is None
    numbers.restart(numbers.next_rows())
    assert numbers.next_rows() == {(TABLE, "a"): 15}
    assert numbers.claim(TABLE, piece(15, 3)) is None
    assert numbers.claim("io", piece(0, 2)) is None


def test_a_table_has_so_many_senders_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "MOST_SENDERS", 3)
    numbers = SenderNumbers("run-1", {(TABLE, "a"): 5})
    for sender in "bc":
        assert numbers.claim(TABLE, piece(0, 1, sender)) is None
    with raises(InvalidArgument, names=(TABLE, "run-1", "3")):
        numbers.claim(TABLE, piece(0, 1, "d"))
    assert numbers.claim(TABLE, piece(1, 1, "c")) is None
    assert numbers.claim("io", piece(0, 1, "d")) is None


@pytest.mark.parametrize(("sender", "first_row", "name"), [("a/b", 0, "a/b"), ("a", -1, "-1")])
def test_pieces_that_cannot_be(sender: str, first_row: int, name: str) -> None:
    with raises(InvalidArgument, names=name):
        piece(first_row, 1, sender)
