"""What is written, read as others read it."""

import csv
import io
import json
import re
from dataclasses import replace
from datetime import datetime

import pytest

from hocket.bench.layout import ResultLayout
from hocket.bench.result import Result
from hocket.bench.run import Run
from hocket.bench.writers import find_writer, format_names
from hocket.errors import InvalidArgument

from ..naming import raises
from .results import result

pytestmark = pytest.mark.timeout(60)
RESULTS = (
    result("all_reduce", 4, [2.5e-6] * 9, calls=[(2e-6, 3e-6), (2.5e-6, 1e-6)]),
    result("all_reduce", 1 << 20, [1e-3] * 9),
    result("bandwidth", 1 << 20, [64e-3] * 9),
    result("barrier", 0, [1e-6] * 9),
    result("multi_bandwidth", 1024, [64e-6] * 9, num_ranks=4),
)
RUN = Run(RESULTS, 1.9, 0.01, (), 1_700_000_000.0, 1_700_000_090.0)


def test_osu_text_has_the_columns_that_parsers_read():
    text = find_writer("osu")(RUN, ResultLayout())
    # as ReFrame's osu_benchmarks read it: the size at the beginning of a line, and the figure after blanks
    assert re.search(r"^4\s+(\S+)", text, re.MULTILINE)[1] == "2.50"
    assert re.search(r"^1048576\s+(?P<bw>\S+)", text[text.index("Bandwidth") :], re.MULTILINE)["bw"] == "1048.58"
    assert "# OSU MPI Allreduce Latency Test" in text and "# OSU MPI Barrier Latency Test" in text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [len(line) for line in lines] == [28, 28, 28, 18, 46]
    assert lines[-1].split() == ["1024", "2048.00", "2000000.00"]  # two pairs: MB/s and messages a second


OVERLAPPED = result(
    "iall_reduce",
    1024,
    [20e-6] * 9,
    parts={"alone": [8e-6] * 5 + [12e-6] * 4, "product": [9e-6] * 9, "begin": [3e-6] * 9},
)


def test_osu_text_of_nonblocking_collectives():
    """OMB 7.5, util/osu_util_mpi.c: what `print_only_header_nbc` writes, with and without --full."""
    run = Run((OVERLAPPED,), 1.9, 0.01, (), 1_700_000_000.0, 1_700_000_090.0)
    few, everything = (find_writer("osu")(run, ResultLayout(full=full)).splitlines() for full in (False, True))
    assert "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait" in few
    assert re.findall(r"[A-Z][\w. ]*\(.+?\)", few[-2]) == [
        "Size (B)", "Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)",
    ]  # fmt: skip
    assert re.findall(r"[A-Z][\w. ]*\(.+?\)", everything[-2]) == [
        "Size (B)", "Overall(us)", "Compute(us)", "Coll. Init(us)", "MPI_Test(us)", "MPI_Wait(us)", "Pure Comm.(us)",
        "Min Comm.(us)", "Max Comm.(us)", "Overlap(%)",
    ]  # fmt: skip
    assert everything[-1].split() == ["1024", "20.00", "9.00", "3.00", "0.00", "8.00", "8.00", "8.00", "12.00", "0.00"]


def test_osu_text_of_a_file_that_lacks_the_beginning():
    plain = replace(OVERLAPPED, parts={name: each for name, each in OVERLAPPED.parts.items() if name != "begin"})
    run = Run((plain,), 1.9, 0.01, (), 1_700_000_000.0, 1_700_000_090.0)
    assert find_writer("osu")(run, ResultLayout(full=True)).splitlines()[-1].split()[3:6] == ["nan", "0.00", "nan"]


def test_nccl_json_has_both_places_beside_each_other():
    both = [result("all_gather", 8, [time] * 9, place=place) for place, time in (("out", 2e-6), ("in", 1e-6))]
    run = Run((*both, result("all_gather", 16)), 1.9, 0.01, (), 1_700_000_000.0, 1_700_000_090.0)
    first, natural = json.loads(find_writer("nccl")(run, ResultLayout()))["results"]
    assert (first["out_of_place"]["time"], first["in_place"]["time"]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert {"out_of_place_per_iter", "in_place_per_iter"} <= first.keys()
    assert "in_place" not in natural and "out_of_place" in natural


def test_a_result_without_a_place_is_one_of_an_older_file():
    given = RESULTS[0].to_json(raw=True)
    del given["place"]
    assert Result.from_json(given) == RESULTS[0]


def test_csv_is_read_by_csv():
    rows = list(csv.DictReader(io.StringIO(find_writer("csv")(RUN, ResultLayout()))))
    assert [row["benchmark"] for row in rows] == [each.point.benchmark for each in RESULTS]
    assert float(rows[0]["value"]) == pytest.approx(2.5) and float(rows[0]["low"]) == pytest.approx(2.5)


def test_json_gives_the_results_back():
    given = json.loads(find_writer("json")(RUN, ResultLayout()))
    assert tuple(map(Result.from_json, given["results"])) == RESULTS
    assert given["ended_s"] - given["began_s"] == 90


def test_nccl_json_is_consistent_as_their_tool_checks_it():
    given = json.loads(find_writer("nccl")(RUN, ResultLayout()))
    assert given["version"] == 2 and len(given["config"]["devices"]) == 2
    began, ended = (datetime.strptime(given[name], "%Y-%m-%d %H:%M:%S") for name in ("start_time", "end_time"))
    assert (ended - began).total_seconds() == 90  # as it was measured, not as it was written
    first = given["results"][0]
    assert (first["size"], first["count"], first["type"], first["redop"]) == (4, 1, "float32", "sum")
    of_calls = first["out_of_place_per_iter"]
    # tools/analyze_perf_json.py: times_us is the largest over processes, of every iteration
    longest = [max(each) for each in zip(*of_calls["per_process_max_times_us"], strict=True)]
    assert of_calls["times_us"] == longest == pytest.approx([3.0, 2.5])
    assert of_calls["avg_us"] == pytest.approx(2.75) and of_calls["max_us"] == pytest.approx(3.0)
    assert first["out_of_place"].keys() == {"time", "alg_bw", "bus_bw", "nwrong"}


def test_unknown_formats_are_refused():
    with raises(InvalidArgument, names=("'xml'", *format_names())):
        find_writer("xml")
