"""Exceptions that are consequences of another rank's failure, and the report file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.backends import backends_among
from hocket.boot.report import FailureReport, make_report, read_reports, write_report
from hocket.errors import Aborted, CommTimeout, PeerFailure

from ..naming import names_value

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


def _of(call: Callable[[], object]) -> FailureReport:
    try:
        call()
    except Exception as error:
        return make_report(0, error, error.__traceback__)
    raise AssertionError("nothing was raised")


class Sized:
    size = 3


def _misspelt() -> object:
    rank_count = 3
    return rank_count, rank_cout  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (_misspelt, "'rank_count'"),
        (lambda: Sized().siz, "'size'"),  # type: ignore[attr-defined]
        (lambda: json.lods, "'loads'"),  # type: ignore[attr-defined]
        (lambda: Sized().nothing_like_it, None),  # type: ignore[attr-defined]
        (lambda: {}["size"], None),
    ],
)
def test_what_python_thinks_was_meant(call: Callable[[], object], meant: str | None) -> None:
    report = _of(call)
    for text in (report.one_line, report.traceback.splitlines()[-1]):
        assert text.count("Did you mean") == (meant is not None)
        assert meant is None or names_value(text, meant)


def test_where_is_the_users_line() -> None:
    """Not the line of a library that detected the mistake."""
    for call in (lambda: json.loads("{"), lambda: backends_among(["shn"])):
        assert _of(call).where.startswith(f"{__file__}:")
