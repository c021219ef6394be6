"""Which exceptions count as consequences of another rank's failure, and the file they travel in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.boot.report import make_report, read_reports, write_report
from hocket.errors import Aborted, CommTimeout, PeerFailure

pytestmark = pytest.mark.timeout(30)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def handled(first: BaseException, second: BaseException) -> BaseException:
    try:
        try:
            raise first
        except BaseException:
            raise second  # noqa: B904 - the context is what this is about
    except BaseException as caught:
        return caught


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


RING = ValueError("ring")
RING.__context__ = KeyError("other")
RING.__context__.__context__ = RING


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (raised(PeerFailure("rank 1 died", (1,))), True),
        (raised(Aborted("given up")), True),
        (raised(CommTimeout("rank 1 is missing", (1,))), True),
        (raised(RuntimeError("step failed"), cause=PeerFailure("rank 1 died")), True),
        (handled(PeerFailure("rank 1 died"), KeyError("clean-up failed")), True),
        (raised(TimeoutError("a user's own")), False),
        (raised(ValueError("bad")), False),
        (RING, False),
    ],
)
def test_consequence(error: BaseException, consequence: bool) -> None:
    assert make_report(0, error, error.__traceback__).consequence is consequence


def test_report_survives_the_file(tmp_path: Path) -> None:
    error = raised(ValueError("bad ö\nsecond line"))
    report = make_report(1, error, error.__traceback__)
    write_report(tmp_path, report)
    (tmp_path / "rank-0.json").write_text("{half")
    assert read_reports(tmp_path, range(3)) == {1: report}
    assert report.one_line == "ValueError: bad ö"
    assert report.where.endswith("in raised")
    assert report.traceback.startswith("Traceback (most recent call last):\n")


def test_exception_without_text() -> None:
    error = raised(Unprintable())
    assert make_report(0, error, error.__traceback__).type_name == "Unprintable"
