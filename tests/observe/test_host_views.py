"""What other hosts say of their processes: nothing of it is believed before it has the right type and size."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import hocket as hk
from hocket.cli._observe_screen import screen
from hocket.observe import InFlight, JobView, JobWatcher, LatestCollective, RankView, RunWatcher
from hocket.observe.agent import FOLDER_PREFIX
from hocket.observe.host_views import add_host, joined, keep_view, remove_host, view_message
from hocket.trace import RecorderPlace, find_recorders
from hocket.typed_json import record_from

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def own() -> RankView:
    with hk.init() as comm:
        comm.barrier()
        found = JobWatcher(_own_recorder).look().ranks
    return found[0]


def _own_recorder() -> list[RecorderPlace]:
    """That of this process alone: the suite's other processes may have some, too."""
    return [place for place in find_recorders(os.getpid()) if place.read(0).owner.pid == os.getpid()][:1]


def _ranks(own: RankView, host: str, numbers: list[int], *, port: int = 1, job: int = 0) -> JobView:
    """Ranks of a job of four."""
    ranks = []
    for rank in numbers:
        owner = replace(own.owner, rank=rank, world_size=4, host=host)
        ranks.append(replace(own, job=job, launcher=(f"MASTER_PORT={port}",), owner=owner))
    return JobView(tuple(ranks), (), None)


def test_a_view_comes_back(own: RankView) -> None:
    message = json.loads(json.dumps(view_message(JobView((own,), ("problem",), 0.5))))
    assert [record_from(RankView, each) for each in message["ranks"]] == [own]
    assert (message["problems"], message["num_left_out"]) == (["problem"], 0)


def test_a_view_that_would_be_too_long_says_how_many_it_leaves_out(own: RankView) -> None:
    message = view_message(JobView((own,) * 1000, (), None))
    assert len(json.dumps(message)) < 1 << 20 and message["ranks"]
    assert 0 < message["num_left_out"] == 1000 - len(message["ranks"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("job", "0"), ("job", 1.5), ("job", True), ("job", None), ("cpu", "much"), ("cpu", float("nan")), ("cpu", []),
     ("owner", None), ("owner", {}), ("owner", {"pid": 1}), ("waits_for", [1, "2"]), ("waits_for", 3),
     ("waits_for", {}), ("activity", []), ("launcher", "text"), ("status", 1), ("batch", {"system": 1}), ("io", "all")],
)  # fmt: skip
def test_values_of_other_types_are_refused(own: RankView, field: str, value: Any) -> None:
    with pytest.raises((TypeError, KeyError)):
        record_from(RankView, {**asdict(own), field: value})
    content = json.loads(json.dumps(asdict(own)))
    del content[field]
    with pytest.raises(KeyError):
        record_from(RankView, content)


def test_ranks_of_one_job_on_two_hosts_wait_for_each_other(own: RankView) -> None:
    """Ranks 0 to 2 have begun collective number 5, rank 3 on the other host only number 4."""
    flight = InFlight("operations", "all_reduce", "world", 5, None, 8, 1.0, "0-3")

    def begun(view: JobView) -> JobView:
        ranks = []
        for each in view.ranks:
            is_late = each.owner.rank == 3
            collectives = (LatestCollective("world", "0-3", 4 if is_late else 5),)
            activity = replace(each.activity, in_flight=() if is_late else (flight,), collectives=collectives)
            ranks.append(replace(each, activity=activity))
        return JobView(tuple(ranks), (), None)

    view = joined(begun(_ranks(own, "a", [0, 1])), [begun(_ranks(own, "b", [2, 3], job=7))])
    assert [(each.owner.host, each.owner.rank, each.job, each.waits_for) for each in view.ranks] == [
        ("a", 0, 0, (3,)), ("a", 1, 0, (3,)), ("b", 2, 0, (3,)), ("b", 3, 0, ())]  # fmt: skip


@pytest.mark.parametrize(("numbers", "port"), [([2, 3], 2), ([1, 2], 1)])
def test_other_jobs_stay_apart(own: RankView, numbers: list[int], port: int) -> None:
    """With another name, or with a rank that is there already."""
    view = joined(_ranks(own, "a", [0, 1]), [_ranks(own, "b", numbers, port=port)])
    assert [each.job for each in view.ranks] == [0, 0, 1, 1]


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 5000, '{"ranks": 3, "problems": [], "num_left_out": 0}', "\xff",
                                  '{"ranks": [{}], "problems": [], "num_left_out": 0}', " " * (2 << 20)])  # fmt: skip
def test_a_view_that_cannot_be_read_is_a_problem(tmp_path: Path, text: str) -> None:
    memory = tmp_path / (FOLDER_PREFIX + "test")
    memory.mkdir()
    add_host(memory, "host-1-a.b")
    with hk.init():
        (place,) = _own_recorder()
        (memory / "recorder").symlink_to(place.path)
        watcher = RunWatcher(lambda: [replace(place, path=_Linked(memory, place.path))])
        assert watcher.look().problems and watcher.awaited == ("host-1-a.b",)
        (memory / "host-1-a.b.view").write_text(text, encoding="latin1")
        view = watcher.look()
        assert len(view.problems) == 1 and "host-1-a.b" in view.problems[0] and len(view.ranks) == 1
        keep_view(memory, "host-1-a.b", {"ranks": [], "problems": [], "num_left_out": 0})
        assert watcher.look().problems == () and watcher.awaited == ()
        remove_host(memory, "host-1-a.b")
    assert sorted(path.name for path in memory.iterdir()) == ["recorder", "watched"]


class _Linked(type(Path())):  # type: ignore[misc]
    """A recorder that seems to lie in an agent's folder."""

    def __new__(cls, memory: Path, target: Path) -> _Linked:
        made: _Linked = super().__new__(cls, target)
        made.memory = memory
        return made

    def readlink(self) -> Path:
        return Path(self.memory) / "recorder"


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_a_narrow_terminal_leaves_columns_out(own: RankView, width: int) -> None:
    """No number is cut: a column is shown whole or not at all, but for what the process does."""
    from rich.console import Console

    flight = InFlight("foreign", "all_reduce", "gloo group of ranks 0-3", 12, None, 4096, 5.0, "0-3")
    busy = replace(own, activity=replace(own.activity, in_flight=(flight,)), waits_for=(2, 3))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(JobView((busy, busy), (), 1.0), "title", width))
    heading, *rows = [line for line in console.export_text().splitlines() if line[:1] in "┃│"]
    names = [each.strip() for each in heading.strip("┃").split("┃")]
    assert {"rank", "state", "doing", "waits for"} <= set(names)
    assert (len(names) == 13) == (width >= 160)
    cells = [each.strip() for each in rows[0].strip("│").split("│")]
    assert all("…" not in cell for name, cell in zip(names, cells, strict=True) if name != "doing")
    assert "ranks 2, 3" in cells and max(map(len, console.export_text(clear=False).splitlines() or [""])) <= width
