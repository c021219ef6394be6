"""Files with a format and a version: others are refused by name, with the caller's exception class."""

import json
from pathlib import Path

import pytest

from hocket.errors import InvalidSchedule, TableError
from hocket.versioned_json import Head, read_text

from .naming import IS_A_DIRECTORY, NO_SUCH_FILE, Given, raises

HEAD = Head("hocket toy, version ", 3, TableError, older=(2,))
NUMBER = Head("", 1, InvalidSchedule, key="toy", title="a toy (version 1)")


def test_what_is_read() -> None:
    assert HEAD.text == "hocket toy, version 3"
    assert HEAD.parse('{"format": "hocket toy, version 3", "rows": [1]}', "x") == (3, {"rows": [1]})
    assert HEAD.parse('{"rows": [1], "format": "hocket toy, version 2"}', "x") == (2, {"rows": [1]})
    assert NUMBER.parse('{"toy": 1}', "x") == (1, {})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ("x", "line 1")),
        ('{"format":\n\nnone}', ("x", "line 3")),
        ("[]", ("x", "line 1", "version 3", "list")),
        ("null", ("x", "line 1", "version 3", "null")),
        ("1.5", ("x", "line 1", "version 3", "number")),
        ("{}", ("x", "line 1", "version 3", '"format"')),
        ('{"format": "hocket table, version 3"}', ("version 3", Given("'hocket table, version 3'"))),
        ('{"format": 3}', ("version 3", "'3'")),
        ('{"format": "hocket toy, version 03"}', ("version 3", Given("'hocket toy, version 03'"))),
        ('{"format": "hocket toy, version "}', ("version 3", Given("'hocket toy, version '"))),
        ('{"format": "hocket toy, version 4"}', ("version 4", "2", "3")),
        ("[" * 100_000, ("x",)),
        ('{"format": ' + "1" * 5000 + "}", ("x",)),
    ],
)
def test_what_is_refused(text: str, names: tuple[str, ...]) -> None:
    with raises(TableError, names=names) as raised:
        HEAD.parse(text, "x")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("value", [True, 1.0, "1", 2, None, [1]])
def test_numbers_alone(value: object) -> None:
    with raises(InvalidSchedule, names=("x", "line 1", "version 1")):
        NUMBER.parse(json.dumps({"toy": value}), "x")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text('{"format": "hocket toy, version 3",\r\n"rows": 1}', newline="")
    assert HEAD.load(path) == (3, {"rows": 1})
    assert "\r" not in read_text(path, TableError)
    length = path.stat().st_size
    for most, is_read in ((length, True), (length - 1, False)):
        head = Head("hocket toy, version ", 3, TableError, most_nbytes=most)
        if is_read:
            assert head.load(str(path)) == (3, {"rows": 1})
        else:
            with raises(TableError, names=("toy.json", f"{most} bytes")):
                head.load(path)
    with raises(TableError, names=("absent.json", NO_SUCH_FILE)):
        HEAD.load(tmp_path / "absent.json")
    with raises(TableError, names=(str(tmp_path), IS_A_DIRECTORY)):
        HEAD.load(tmp_path)
    path.write_bytes(b"\xff\xd8\xff")
    with raises(TableError, names="toy.json"):
        HEAD.load(path)
