"""`hocket open`: each kind of files through the server and in a page of one file, and files that are refused."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest

from hocket.bench.engine_times import to_text
from hocket.errors import HocketError, InvalidArgument, InvalidSchedule, InvalidState, MissingPackage, TableError
from hocket.observe import StoreClient, serve_store
from hocket.pipeline import build, load_schedule, save_schedule
from hocket.tune import Observations, save_observations

from .. import program
from ..bench.engine_rows import ENGINES, engine_times
from ..naming import NO_SUCH_FILE, assert_names, raises
from .opened_files import answers_of, bench_run, observations, opened, tuning_table, write_files

pytest.importorskip("fastapi")
from hocket.observe.serve import page_document, unopened
from hocket.observe.serve.opened_results import OpenedResults, open_results, result_kinds
from hocket.observe.store.columns import SCHEMA_VERSION

pytestmark = pytest.mark.timeout(180)
_SOURCE = Path(__file__).parents[2] / "src/hocket"
_INDEX = """<!doctype html><html><head><title>hocket</title>
<script type="module" crossorigin src="./assets/index-1.js"></script>
<link rel="stylesheet" crossorigin href="./assets/index-1.css"></head><body><div id="page"></div></body></html>"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return write_files(tmp_path)


def test_every_kind_has_a_file_here_and_one_of_the_page(files: dict[str, Path]) -> None:
    assert files.keys() == result_kinds().keys()
    page = _SOURCE.parents[1] / "ui/src/results"
    assert {path.stem.lower() for path in page.glob("*.svelte")} == result_kinds().keys()
    assert [each.kind for each in open_results(list(files.values())).listed] == list(files)


def test_benchmarks(files: dict[str, Path], tmp_path: Path) -> None:
    results = open_results([tmp_path / "before.json", files["bench"]])
    answer = json.loads(results.answers["bench.json"])
    assert (answer["core_factor"], answer["foreign_busy"]) == (1.875, 0.0625)
    (part,) = answer["benchmarks"]
    assert (part["benchmark"], part["num_ranks"], part["unit"], part["ways"]) == (
        "all_reduce",
        2,
        "us",
        ["shm", "mpi:mpich"],
    )
    expected = {(each.point.target, each.point.nbytes): each for each in bench_run(2.0).results}
    for value in part["values"]:
        result = expected[value["way"], value["nbytes"]]
        assert value["value"] == pytest.approx(result.value)
        assert (value["low"], value["high"]) == pytest.approx(result.interval)
        assert value["is_fastest"] == (value["way"] == "shm")
        assert value["num_timed"] == 200
    (difference,) = answer["differences"]
    assert difference["before"] == "before.json"
    assert [row["ratio"] for row in difference["rows"]] == pytest.approx([2.0] * 4)
    assert {row["verdict"] for row in difference["rows"]} == {"slower"}
    assert json.loads(results.answers["before.json"])["differences"] == []


def test_a_tuning_table_with_observations(files: dict[str, Path]) -> None:
    answers = answers_of(files["tuning"], files["observations"])
    found = answers["tuning"]
    assert found["hash"] == tuning_table().hash
    small, large = found["choices"]
    assert (large["chosen"], large["second"], large["is_clear"]) == ("shm", "mpi", True)
    assert (small["cost_s"], large["cost_s"]) == pytest.approx((3e-6, 192e-6))
    (regret,) = found["regrets"]
    assert (regret["observations"], regret["carrier"], regret["best"]) == ("observations.json", "mpi", "shm")
    assert regret["cost_s"] == pytest.approx(3e-3) and regret["is_extrapolated"] is False
    assert answers["observations"]["tables"] == ["tuning.json"]
    assert answers["observations"]["rows"][0]["total_s"] == pytest.approx(5e-3)
    assert answers_of(files["tuning"])["tuning"]["regrets"] == []
    large = replace(observations().rows[0], nbytes=1 << 30)
    save_observations(Observations(("node-1",), (large,)), files["observations"])
    (regret,) = answers_of(files["tuning"], files["observations"])["tuning"]["regrets"]
    assert regret["is_extrapolated"] is True


def test_schedules_and_steps(files: dict[str, Path]) -> None:
    answers = answers_of(*(files[kind] for kind in ("pipeline", "collective", "traffic", "simulation")))
    pipeline = answers["pipeline"]
    assert (pipeline["seconds"], pipeline["bound_s"], pipeline["problem"]) == (27.0, 27.0, "")
    assert (len(pipeline["actions"]), len(pipeline["ranks"])) == (96, 4)
    assert answers["collective"]["proof"] == "proven"
    assert sum(map(sum, answers["collective"]["sent_blocks"])) == 24
    assert answers["traffic"]["compute_s"] == 0.25
    assert answers["simulation"]["waits_s"] == 0.125
    assert answers["simulation"]["operations"][0]["total_s"] == 0.1875


def test_times_of_engines(files: dict[str, Path]) -> None:
    found = answers_of(files["engines"])["engines"]
    times = engine_times()
    assert (found["core_factor"], found["foreign_busy"], found["link"]) == (1.75, 0.03125, times.link)
    assert found["is_judged"] and found["engines"] == [*ENGINES]
    expected = {
        (each.model, each.batch, each.num_ranks, each.is_simulated, each.engine): (
            each.ms, each.low_ms, each.high_ms, each.ns_per_byte, each.samples_per_s
        )
        for each in times.rows
    }  # fmt: skip
    shown = {
        (group["model"], group["batch"], group["num_ranks"], group["is_simulated"], row["engine"]): tuple(
            row[name] for name in ("ms", "low_ms", "high_ms", "ns_per_byte", "samples_per_s")
        )
        for group in found["groups"]
        for row in group["rows"]
    }
    assert shown == expected
    for group in found["groups"]:
        assert group["fastest"] == "mix"
        is_close = not group["is_simulated"] and group["model"] != "gpt"
        assert group["rivals"] == ["ddp"] * is_close
        assert [row["is_fastest"] for row in group["rows"]] == [not is_close, False, False, False]
        assert group["rows"][0]["times_fastest"] == 1.0
    busy = replace(times, rows=times.rows[:1], foreign_busy=0.26, link="")
    files["engines"].write_text(to_text(busy))
    found = answers_of(files["engines"])["engines"]
    assert not found["is_judged"]
    (group,) = found["groups"]
    assert not group["rivals"] and not group["rows"][0]["is_fastest"]  # nothing to compare it with


def test_passes_that_overlap_share_a_row(files: dict[str, Path]) -> None:
    save_schedule(build("dualpipe", 4, 8), files["pipeline"])
    actions = answers_of(files["pipeline"])["pipeline"]["actions"]
    together = [each for each in actions if each["num_together"] == 2]
    assert together and len(together) < len(actions)
    for first, second in zip(together[::2], together[1::2], strict=True):
        assert (first["place"], second["place"]) == (0, 1)
        assert {first["kind"], second["kind"]} >= {"F"} and first["began_s"] == second["began_s"]


def test_a_training(files: dict[str, Path]) -> None:
    curves = {each["name"]: each["values"] for each in answers_of(files["training"])["training"]["curves"]}
    assert curves["loss"] == [1.5, 0.75, None]
    assert (curves["accuracy[0]"], curves["accuracy[1]"]) == ([0.25] * 3, [0.5] * 3)
    content = json.loads(files["training"].read_text())
    for wrong in ({"loss": [1.0]}, {"loss": [1.0, "x", 2.0]}, {"loss": [[1.0], [], [2.0]]}, []):
        files["training"].write_text(json.dumps(content | {"history": wrong}))
        with raises(InvalidArgument, names="training.json"):
            open_results([files["training"]])


def test_wrong_schedules_are_shown_with_what_is_wrong(files: dict[str, Path]) -> None:
    text = files["pipeline"].read_text()
    for wrong in (text.replace("rank 0: 0F0 ", "rank 0: "), text.replace("rank 0: 0F0", "rank 0: 0W7 0F0")):
        files["pipeline"].write_text(wrong)
        answer = answers_of(files["pipeline"])["pipeline"]
        assert answer["problem"]
        assert bool(answer["table"]) == (answer["seconds"] is None)
    files["collective"].write_text(files["collective"].read_text().replace("true", "false", 1))
    answer = answers_of(files["collective"])["collective"]
    assert (answer["proof"], bool(answer["problem"])) == ("wrong", True)


def test_what_the_server_says(files: dict[str, Path], tmp_path: Path) -> None:
    results = open_results(list(files.values()))
    urls, end = Queue[str](), Event()
    options = {"port": 0, "on_ready": urls.put, "until": end, "results": results}
    server = Thread(target=serve_store, args=(tmp_path / "store",), kwargs=options)
    server.start()
    try:
        with StoreClient(urls.get(timeout=60), (tmp_path / "store/token").read_text().strip(), timeout=20) as client:
            listed = client.ask("/v1/results")["results"]
            assert [(each["name"], each["kind"]) for each in listed] == [(f.name, kind) for kind, f in files.items()]
            for each in listed:
                assert client.ask(f"/v1/results/{each['name']}") == json.loads(results.answers[each["name"]])
            with raises(InvalidArgument, names="'nothing.json'"):
                client.ask("/v1/results/nothing.json")
            paths = client.ask("/v1/openapi.json")["paths"]
            schema = paths["/v1/results/{name}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            assert len(schema["anyOf"]) == len(files)
    finally:
        end.set()
        server.join(60)


def test_the_command_ends_with_ctrl_c(files: dict[str, Path]) -> None:
    with opened(*files.values()) as (process, printed, client):
        assert client.ask("/v1/results")["results"] == printed["results"]
        assert client.ask("/v1/runs") == {"runs": [], "problems": {}}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not Path(printed["store"]).exists()


@pytest.mark.full
def test_a_run_beside_files(files: dict[str, Path], tmp_path: Path) -> None:
    from hocket.observe import record_run

    record_run(["true"], tmp_path / "run-1")
    with opened(files["pipeline"], tmp_path / "run-1") as (_, printed, client):
        assert [each["kind"] for each in printed["results"]] == ["pipeline"]
        assert not (tmp_path / f"run-1/store-{SCHEMA_VERSION}").exists()
        assert not client.ask("/v1/health")["problems"]
    with opened(tmp_path / "run-1") as (_, printed, _):
        assert Path(printed["store"]) == tmp_path / f"run-1/store-{SCHEMA_VERSION}"
    page = tmp_path / "page.html"
    done = program.hocket("open", str(files["pipeline"]), str(tmp_path / "run-1"), "--html", str(page), "--json")
    assert json.loads(done.stdout)["runs"] == [str(tmp_path / "run-1")]
    answers = json.loads(page.read_text().partition('id="answers">')[2].partition("</script>")[0])
    assert answers["runs"]["runs"] == ["run-1"] and "runs/run-1/views/overview" in answers
    assert [each["kind"] for each in answers["results"]["results"]] == ["pipeline"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more/run-1").symlink_to(tmp_path / "run-1")
    done = program.hocket("open", "run-1", "more/run-1", folder=tmp_path)
    assert done.returncode == 2
    assert_names(done.stderr, "run-1", "more/run-1")


def test_a_page_of_one_file(files: dict[str, Path], tmp_path: Path) -> None:
    assets = tmp_path / "page"
    (assets / "assets").mkdir(parents=True)
    (assets / "index.html").write_text(_INDEX)
    (assets / "assets/index-1.js").write_text('const text = "</script><!-- <SCRIPT>";')
    (assets / "assets/index-1.css").write_text("p { margin: 0 }")
    steps = files["traffic"].read_text().replace("by hand", "</script><script>")
    files["traffic"].write_text(steps)
    results = open_results(list(files.values()))
    page = page_document.page_document(results, assets=assets)
    assert page.count("<script") == page.count("</script>") == 2 and "<!--" not in page
    assert "p { margin: 0 }" in page and "./assets" not in page
    answers = json.loads(page.partition('id="answers">')[2].partition("</script>")[0])
    assert answers["results"]["results"][0]["name"] == results.listed[0].name
    assert answers["results/traffic.json"] == json.loads(results.answers["traffic.json"])
    (assets / "index.html").write_text(_INDEX.replace("module", "text"))
    with raises(InvalidState, names=str(assets / "index.html")):
        page_document.page_document(results, assets=assets)
    with raises(MissingPackage, names="make"):
        page_document.page_document(OpenedResults(), assets=tmp_path)


def _heads() -> list[str]:
    """The names of all formats with a version in the source."""
    found = []
    for path in _SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Head":
                found.append(ast.literal_eval(node.args[0]))
    return sorted(found)


def test_every_format_of_the_source_is_opened_or_refused_by_name() -> None:
    opened_names = {kind.head.name for kind in result_kinds().values()}
    assert {*_heads()} == opened_names | {name for name in unopened.BY_NAME if name != "hocket-failure-"}
    assert not opened_names & unopened.BY_NAME.keys()


@pytest.mark.parametrize("name", sorted(unopened.BY_NAME))
def test_parts_of_other_things_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "part.json"
    path.write_text(json.dumps({"format": f"{name}1"}))
    with raises(InvalidArgument, names="part.json") as caught:
        open_results([path])
    assert unopened.BY_NAME[name] in str(caught.value)


_WRONG: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (lambda path: None, (NO_SUCH_FILE,)),
    "empty": (lambda path: path.write_text(" \n"), ()),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), ()),
    "no JSON": (lambda path: path.write_text("{"), ("hocket bench run", "hocket tune run")),
    "a list": (lambda path: path.write_text("[1, 2]"), ("hocket bench run",)),
    "no format": (lambda path: path.write_text("{}"), ("hocket bench run", "hocket simulate")),
    "another format": (lambda path: path.write_text('{"format": "recipe, version 1"}'), ("'recipe, version 1'",)),
    "format is a list": (lambda path: path.write_text('{"format": ["x"]}'), ("hocket pipeline convert",)),
    "version as text": (lambda path: path.write_text('{"hocket_bench": "1"}'), ("'1'",)),
    "NaN": (lambda path: path.write_text('{"hocket_bench": 1, "core_factor": NaN}'), ("NaN",)),
    "a long number": (lambda path: path.write_text('{"hocket_bench": ' + "1" * 5000 + "}"), ()),
    "nested": (lambda path: path.write_text('{"format": ' + "[" * 100_000), ()),
    "a pipe": (os.mkfifo, ()),
    "a link to itself": (lambda path: path.symlink_to(path), ()),
    "2 GB": (lambda path: path.touch() or os.truncate(path, 2 << 30), (str(256 << 20),)),
}


@pytest.mark.parametrize("case", sorted(_WRONG))
def test_wrong_files(tmp_path: Path, case: str) -> None:
    make, names = _WRONG[case]
    path = tmp_path / "wrong.json"
    make(path)
    with raises(InvalidArgument, names=("wrong.json",)) as caught:
        open_results([path])
    assert_names("\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]), *names)


def test_a_file_of_no_kind_is_told_in_a_short_line_and_what_can_be_opened_in_another(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"format": "recipe, version 1"}')
    done = program.hocket("open", "wrong.json", folder=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    wrong, right = done.stderr.splitlines()
    assert_names(wrong, "wrong.json", "'recipe, version 1'")
    assert len(wrong) < 120
    assert all(kind.title in right and kind.command in right for kind in result_kinds().values())


@pytest.mark.parametrize(
    ("content", "error", "names"),
    [
        ({"hocket_bench": 7}, InvalidArgument, ("7", "1")),
        ({"format": "hocket tuning table, version 9"}, TableError, ("9", "2")),
        ({"format": "hocket pipeline schedule, version 4"}, InvalidSchedule, ("4", "1")),
        ({"format": "hocket schedule, version 3"}, InvalidSchedule, ("3", "1")),
        ({"format": "hocket-traffic-8"}, InvalidArgument, ("8", "1")),
        ({"format": "hocket simulated step, version 5"}, InvalidArgument, ("5", "1")),
        ({"format": "hocket training, version 2"}, InvalidArgument, ("2", "1")),
        ({"format": "hocket gradient engines, version 3"}, InvalidArgument, ("3", "1")),
    ],
)
def test_another_version_names_both(
    tmp_path: Path, content: dict[str, Any], error: type[Exception], names: tuple[str, ...]
) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps(content))
    with raises(error, names=("new.json", *names)):
        open_results([path])


def test_a_saved_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04\xff")
    with raises(InvalidArgument, names=("model.pt", "torch.load")):
        open_results([tmp_path / "model.pt"])


def test_a_text_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("hocket pipeline schedule, version 3\nmicro-batches: 1\n")
    with raises(InvalidSchedule, names=("new.txt", "3", "1")):
        open_results([path])


def test_schedules_that_are_too_large_to_show(files: dict[str, Path]) -> None:
    files["pipeline"].write_text(files["pipeline"].read_text().replace("micro-batches: 8", "micro-batches: 30000000"))
    files["collective"].write_text(files["collective"].read_text().replace('"num_ranks": 4', '"num_ranks": 4000000'))
    for kind in ("pipeline", "collective"):
        with raises(InvalidArgument, names=files[kind].name):
            open_results([files[kind]])


def _changed(value: Any, draw: random.Random) -> Any:
    """A value of JSON with one part of another type or size."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {key: each for key, each in value.items() if key != name}
        return value | {name: _changed(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], _changed(value[place], draw), *value[place + 1 :]]
    return draw.choice([None, True, -1, 0, 1 << 40, 10**400, 1e308, -0.5, "", "x", [], {}, [[]], ["x"]])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_shown_or_refused(files: dict[str, Path], seed: int) -> None:
    draw = random.Random(seed)
    table = files["pipeline"].with_suffix(".json")
    save_schedule(load_schedule(files["pipeline"]), table)
    for path in (files | {"pipeline": table}).values():
        content = json.loads(path.read_text())
        for _ in range(60):
            path.write_text(json.dumps(_changed(content, draw)))
            try:
                results = open_results([path])
            except HocketError:
                continue
            json.loads(results.answers[path.name])


def test_names_of_equal_files_differ(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b", "c/b"):
        (tmp_path / name).mkdir(parents=True)
        write_files(tmp_path / name)
        paths.append(tmp_path / name / "tuning.json")
    assert [each.name for each in open_results(paths).listed] == ["tuning.json", "b-tuning.json", "tuning.json-2"]
    odd = tmp_path / os.fsdecode(b"no unicode \xff.json")
    paths[0].rename(odd)
    (listed,) = open_results([odd]).listed
    assert listed.name == "no unicode ?.json"
    odd.rename(paths[0])
    with raises(InvalidArgument, names=str(tmp_path / "b/../a/tuning.json")):
        open_results([paths[0], tmp_path / "b/../a/tuning.json"])


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["missing.json"], ("missing.json", NO_SUCH_FILE)),
        (["before.json", "--html", "."], (".",)),
        (["before.json", "--html", "./before.json"], ("before.json",)),
        (["before.json", "--html", "nowhere/page.html"], ("nowhere/page.html",)),
        (["tables"], ("tables.json",)),
        (["store", "other"], ("store", "other")),
        (["--port", "70000", "before.json"], ("--port", "70000")),
        ([], ("hocket open --help",)),
    ],
)
def test_wrong_command_lines(tmp_path: Path, arguments: list[str], names: tuple[str, ...]) -> None:
    write_files(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/tables.json").write_text("{}")
    for name in ("store", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store.json").write_text("{}")
    done = program.hocket("open", *arguments, folder=tmp_path)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert_names(done.stderr, *names)
