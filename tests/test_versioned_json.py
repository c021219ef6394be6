"""Files that begin with what they are: what is something else is named, in the class that the caller says."""

import json
from pathlib import Path

import pytest

from hocket.errors import InvalidSchedule, TableError
from hocket.versioned_json import Head, read_text

HEAD = Head("hocket toy, version ", 3, TableError, older=(2,))
NUMBER = Head("", 1, InvalidSchedule, key="toy", title="a toy (version 1)")


def test_what_is_read() -> None:
    assert HEAD.text == "hocket toy, version 3"
    assert HEAD.parse('{"format": "hocket toy, version 3", "rows": [1]}', "x") == (3, {"rows": [1]})
    assert HEAD.parse('{"rows": [1], "format": "hocket toy, version 2"}', "x") == (2, {"rows": [1]})
    assert NUMBER.parse('{"toy": 1}', "x") == (1, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "x, line 1: Expecting value"),
        ('{"format":\n\nnone}', "x, line 3: Expecting value"),
        ("[]", "x, line 1: not a hocket toy, version 3: it is a list, not an object"),
        ("null", "x, line 1: not a hocket toy, version 3: it is null, not an object"),
        ("1.5", "x, line 1: not a hocket toy, version 3: it is a number, not an object"),
        ("{}", 'x, line 1: not a hocket toy, version 3: it has no "format"'),
        ('{"format": "hocket table, version 3"}', "not a hocket toy, version 3: it says 'hocket table, version 3'"),
        ('{"format": 3}', "not a hocket toy, version 3: it says '3'"),
        ('{"format": "hocket toy, version 03"}', "not a hocket toy, version 3: it says 'hocket toy, version 03'"),
        ('{"format": "hocket toy, version "}', "not a hocket toy, version 3: it says 'hocket toy, version '"),
        ('{"format": "hocket toy, version 4"}', "it is of version 4; this hocket reads version 2 and 3"),
        ("[" * 100_000, "x: "),
        ('{"format": ' + "1" * 5000 + "}", "x: "),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(TableError) as raised:
        HEAD.parse(text, "x")
    assert words in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("value", [True, 1.0, "1", 2, None, [1]])
def test_numbers_alone(value: object) -> None:
    with pytest.raises(InvalidSchedule, match=r"^x, line 1: not a toy \(version 1\): it "):
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
            with pytest.raises(TableError, match=rf"toy\.json: longer than {most} bytes"):
                head.load(path)
    with pytest.raises(TableError, match=r"absent\.json: No such file"):
        HEAD.load(tmp_path / "absent.json")
    with pytest.raises(TableError, match="Is a directory"):
        HEAD.load(tmp_path)
    path.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(TableError, match=r"toy\.json: not a text file"):
        HEAD.load(path)
