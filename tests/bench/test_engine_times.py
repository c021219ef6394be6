"""Files of times of gradient engines: what is read again, what is refused by the name of its field, and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from hocket.bench.engine_times import EngineTime, EngineTimes, rivals_of, to_text
from hocket.errors import InvalidArgument

from ..naming import raises
from .engine_rows import ENGINES, engine_times

pytestmark = pytest.mark.timeout(60)
_PLACE = "engines.json"
_TYPES = get_type_hints(EngineTime)
_MISSING: Any = object()
_OF_OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    str: (None, 1, True, ["gpt"], {}),
    int: (None, "8", True, 1.0, 1e3, float("nan"), [8]),
    float: (None, "2", True, float("nan"), float("inf"), -float("inf"), 10**400, [2.0]),
    bool: (None, 0, 1, "false", []),
}
_OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "model": ("", "m" * 201),
    "engine": ("", "e" * 201),
    "batch": (0, -1, (1 << 31) + 1, 10**400),
    "num_ranks": (0, -1, (1 << 31) + 1, 10**400),
    "num_hosts": (0, -1, 5, 10**400),  # on 4 ranks
    "nbytes": (0, -1, (1 << 60) + 1, 10**400),
    "compute_ms": (-1, -1e-9, 1e13, 1e308),
    "ms": (0, 0.0, -1.0, 1e-300, 1e13, 1e308),
    "low_ms": (-1.0, 1e11),
    "high_ms": (0.0, 1e13, 1e308),
    "is_simulated": (True,),  # with an interval
}


def _content() -> dict[str, Any]:
    """Of a file as JSON."""
    content: dict[str, Any] = json.loads(to_text(engine_times()))
    return content


def _refused(content: object, *names: str) -> None:
    with raises(InvalidArgument, names=(_PLACE, *names)):
        EngineTimes.from_json(json.dumps(content), _PLACE)


@pytest.mark.parametrize("ranks", [(), (8, 64)])
def test_what_is_written_is_read_again(ranks: Sequence[int]) -> None:
    times = engine_times(ranks=ranks)
    assert EngineTimes.from_json(to_text(times), _PLACE) == times
    assert json.loads(to_text(times)) == times.dump()


@pytest.mark.parametrize("name", [each.name for each in fields(EngineTime)])
def test_a_damaged_row_is_refused_by_the_name_of_its_field(name: str) -> None:
    content = _content()
    number, row = next(
        (number, row)
        for number, row in enumerate(content["rows"])
        if row["engine"] == "ring" and row["batch"] == 32 and not row["is_simulated"]
    )
    for value in (_MISSING, *_OF_OTHER_TYPES[_TYPES[name]], *_OUT_OF_RANGE[name]):
        damaged = {key: each for key, each in row.items() if key != name} | ({} if value is _MISSING else {name: value})
        rows = [*content["rows"][:number], damaged, *content["rows"][number + 1 :]]
        _refused(content | {"rows": rows}, f"row {number}", name)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rows", (_MISSING, None, {}, "rows", 1, [], [None] * 10_001)),
        ("core_factor", (_MISSING, None, "1.9", True, -1, 1e7, float("nan"), float("inf"), 10**400, [1.9])),
        ("foreign_busy", (_MISSING, None, "0.1", False, -0.5, 1.5, float("nan"), float("inf"), 10**400, [0.1])),
        ("link", (_MISSING, None, 1, True, ["link"], "l" * 201, "")),  # empty, though there are simulated rows
    ],
)
def test_a_damaged_file_is_refused_by_the_name_of_its_field(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        content = {key: each for key, each in _content().items() if key != name}
        _refused(content if value is _MISSING else content | {name: value}, name)


def test_rows_that_are_no_rows_or_are_there_twice() -> None:
    content = _content()
    for wrong in (None, [], "row", 1, True):
        _refused(content | {"rows": [content["rows"][0], wrong]}, "row 1")
    again = content["rows"][0] | {"ms": 1.0, "low_ms": 1.0, "high_ms": 1.0}
    _refused(content | {"rows": [*content["rows"], again]}, "resnet50", "mix", "num_ranks")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "{}", '{"format": 1}', "[" * 100_000, "1" * 5000])
def test_what_is_no_such_file(text: str) -> None:
    with raises(InvalidArgument, names=_PLACE):
        EngineTimes.from_json(text, _PLACE)


def test_the_fastest_engine_and_those_that_may_be_as_fast() -> None:
    row = EngineTime("gpt", "ring", 8, 4, 1, 1 << 20, 0.0, 2.0, 1.9, 2.1, False)
    close, far, touching = (
        replace(row, engine=name, ms=3.0, low_ms=low, high_ms=4.0)
        for name, low in (("close", 2.05), ("far", 2.2), ("touching", 2.1))
    )
    assert rivals_of([close, far, row, touching]) == (row, [close, touching])
    assert rivals_of([row]) == (row, [])
    assert (row.ns_per_byte, row.samples_per_s) == (2e6 / (1 << 20), 16_000.0)
    assert rivals_of([replace(row, engine="same"), row])[1] == [row]


@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize(
    ("models", "batches", "ranks", "kinds"),
    [
        (["gpt"], (1,), (), {False}),
        (["gpt", "mobilenet", "resnet50"], (1, 32), (), {False}),
        (["gpt"], (1, 32), (8, 64), {False, True}),
        (["gpt", "mobilenet", "resnet50"], (8,), (8,), {False, True}),
        (["gpt", "mobilenet"], (8,), tuple(range(5, 50)), {True}),
    ],
)
def test_pictures(
    tmp_path: Path, models: list[str], batches: Sequence[int], ranks: Sequence[int], kinds: set[bool], ending: str
) -> None:
    """Each has axes of its own for each model and sort of times, every engine, and the whole title."""
    times = engine_times(models, batches, ranks)
    times = replace(times, rows=tuple(each for each in times.rows if each.is_simulated in kinds))
    path = tmp_path / f"engines.{ending}"
    with _drawn(times, path) as figure:
        assert path.stat().st_size > 5000
        assert len(figure.axes) == len(models) * len(kinds)
        width, height = figure.get_size_inches() * figure.dpi
        for text in (figure._suptitle, *figure.legends):
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height
        num_bars = sum(len(axes.patches) for axes in figure.axes)
        assert num_bars == sum(not each.is_simulated for each in times.rows)
        values = sorted(value for axes in figure.axes for line in axes.get_lines() for value in line.get_ydata())
        lines = [line for axes in figure.axes for line in axes.get_lines() if len(line.get_xdata()) == len(ranks)]
        if True in kinds:
            assert {each.ms for each in times.rows if each.is_simulated} <= {*values}
            assert all(line.is_dashed() for line in lines)
            assert {line.get_label().partition(" (")[0] for line in lines} >= {*ENGINES}
            assert figure.legends and times.link in figure._suptitle.get_text().replace("\n", " ")


@contextmanager
def _drawn(times: EngineTimes, path: Path) -> Iterator[Any]:
    """Draw a picture, and return its figure, before it is closed."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from hocket.bench.engine_pictures import draw_engines

    figures: list[Any] = []
    close = pyplot.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyplot, "close", figures.append)
        draw_engines(times, path)
    (figure,) = figures
    try:
        yield figure
    finally:
        close(figure)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_cut_interval_has_a_mark_and_its_end(tmp_path: Path, is_long: bool) -> None:
    times = engine_times(["gpt"], (1,), ())
    first, *others = times.rows
    if is_long:
        first = replace(first, high_ms=98_765.0)
    with _drawn(replace(times, rows=(first, *others)), tmp_path / "engines.png") as figure:
        (axes,) = figure.axes
        marked = [line for line in axes.get_lines() if line.get_marker() == ">"]
        assert bool(marked) == is_long
        assert any("98,765" in text.get_text() for text in axes.texts) == is_long
        assert (">" in figure._suptitle.get_text()) == is_long


def test_lines_in_the_same_place_can_be_told_apart(tmp_path: Path) -> None:
    """Each has a style of its own, and its number, as in the legend, stands at its end."""
    times = engine_times(["gpt"])
    rows = [each for each in times.rows if each.is_simulated]
    more = [replace(each, engine=f"{each.engine} {number}") for number in range(4) for each in rows]
    same = tuple(replace(each, ms=5.0, low_ms=5.0, high_ms=5.0) for each in more)
    with _drawn(replace(times, rows=same), tmp_path / "engines.png") as figure:
        (axes,) = figure.axes
        curves = {(each.engine, each.batch) for each in same}
        styles = {
            (line.get_color(), line.get_marker(), line.get_markerfacecolor(), line.get_linewidth())
            for line in axes.get_lines()
        }
        assert len(axes.get_lines()) == len(styles) == len(curves)
        told = [number for text in axes.texts for number in text.get_text().split(", ")]
        named = [text.get_text().split()[0] for legend in figure.legends for text in legend.get_texts()]
        assert sorted(told) == sorted(named) and len({*told}) == len(curves)


def test_rows_are_written_with_all_fields() -> None:
    (row,) = EngineTimes(engine_times().rows[:1], 1.0, 0.0).dump()["rows"]
    assert row == asdict(engine_times().rows[0])
