"""`hocket bench`: its output, its end, and its messages about wrong arguments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from .. import program
from ..naming import NO_SUCH_FILE, assert_names

hocket = partial(program.hocket, "bench", timeout_s=100)
pytestmark = pytest.mark.timeout(120)
QUICK = ("--budget", "1", "--ci", "0.5")


def test_run_and_report(tmp_path: Path) -> None:
    path, page = tmp_path / "results.json", tmp_path / "page.html"
    done = hocket("run", "osu_latency", "allreduce", "-m", "8:16", *QUICK, "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "latency, 2 ranks, us (numpy buffer)" in done.stdout and "(numpy buffer float32)" in done.stdout
    results = json.loads(path.read_text())["results"]
    assert [(each["benchmark"], each["nbytes"]) for each in results] == [
        ("latency", 8), ("latency", 16), ("all_reduce", 8), ("all_reduce", 16),
    ]  # fmt: skip
    written = hocket("report", str(path), "-o", str(page), "--pictures", str(tmp_path / "pictures"))
    assert written.returncode == 0, written.stderr
    answers = json.loads(page.read_text().partition('id="answers">')[2].partition("</script>")[0])
    parts = answers["results/results.json"]["benchmarks"]
    assert [(part["benchmark"], [value["nbytes"] for value in part["values"]]) for part in parts] == [
        ("all_reduce", [8, 16]), ("latency", [8, 16])
    ]  # fmt: skip
    assert (tmp_path / "pictures" / "latency.png").read_bytes().startswith(b"\x89PNG")
    of_one_launch = hocket("compare", str(path), str(path), "--json")
    assert of_one_launch.returncode == 3 and not json.loads(of_one_launch.stdout)["is_judged"]
    quiet = [tmp_path / "before.json", tmp_path / "after.json"]
    for seconds, file in zip((1e-6, 1.1e-6), quiet, strict=True):  # as on an undisturbed machine
        given = json.loads(path.read_text())
        for each in given["results"]:
            each["samples_s"] = [seconds * (1 + number / 1000) for number in range(18)]
            each["launches"] = [2] * 9
        file.write_text(json.dumps(given))
    equal = hocket("compare", str(quiet[0]), str(quiet[0]), "--json")
    assert equal.returncode == 0 and not json.loads(equal.stdout)["is_slower"]
    judged = hocket("compare", *map(str, quiet))
    assert judged.returncode == 1 and "slower" in judged.stdout


def test_formats_go_to_standard_output() -> None:
    text = hocket("run", "--benchmark", "osu_barrier", *QUICK, "--format", "osu").stdout
    assert text.startswith("# OSU MPI Barrier Latency Test") and float(text.splitlines()[-1]) > 0


def test_columns_and_counts_as_omb_has_them() -> None:
    arguments = ("run", "osu_bw", "-m", "1024:2048", "-i", "18", "-x", "2", "-W", "8", "-f", "-z", "50,99")
    lines = hocket(*arguments, "--format", "osu").stdout.splitlines()
    assert lines[1].split("  ")[0] == "# Size (B)" and "P99 Tail Lat(us)" in lines[1]
    size, bandwidth, least, most, number, *tails = lines[2].split()
    assert (size, number) == ("1024", "18")  # two iterations in each of nine samples
    assert float(bandwidth) > 0 and float(least) <= float(tails[0]) <= float(tails[1]) <= float(most)


def test_starts_of_whole_jobs() -> None:
    done = hocket("run", "startup", "--budget", "0.1", "--json")
    (result,) = json.loads(done.stdout)["results"]
    assert result["benchmark"] == "startup" and result["value"] > 1e4  # microseconds: processes start


def test_overlap_of_what_is_begun() -> None:
    done = hocket("run", "iall_reduce", "--sizes", "256KiB", *QUICK, "--json")
    (result,) = json.loads(done.stdout)["results"]
    assert 0 <= result["overlap"] <= 100 and len(result["parts_s"]["product"]) == len(result["samples_s"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_it_leaves_nothing_behind(number: int) -> None:
    before = left_over()
    command = [sys.executable, "-m", "hocket.cli", "bench", "run", "latency", "--sizes", "8"]
    with subprocess.Popen(
        [*command, "--library", "mpi4py:mpich,shm", "--ci", "0.0001", "--budget", "90"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None and "points" in process.stderr.readline()  # the first round is over
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert left_over() <= before


def left_over() -> set[Path]:
    return {*Path("/dev/shm").glob("mpich_shm_*"), *Path("/tmp").glob("hocket-measure-*")}


def test_list_names_everything() -> None:
    text = hocket("list").stdout
    for each in (
        "latency",
        "all_reduce",
        "iall_reduce",
        "persistent_all_gather",
        "startup",
        "mpi4py:mpich",
        "pickle5",
        "nccl",
    ):
        assert each in text


def test_applications() -> None:
    done = hocket("apps", "matmul", "--scale", "64", *QUICK, "--modelled", "8", "--json")
    (found,) = json.loads(done.stdout)
    assert found["name"] == "matmul" and found["modelled"][0]["num_ranks"] == 8 and found["core_factor"] > 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("run",), ("hocket bench list",)),
        (("run", "allreduc"), ("'allreduc'", "latency")),
        (("run", "latency", "-n", "1"), ("latency", "ranks", "2", "1")),
        (("run", "multi_lat", "-n", "3"), ("multi_latency", "3")),
        (("run", "latency", "--buffer", "cupy"), ("'cupy'", "pip install 'hocket[cupy]'")),
        (("run", "latency", "--library", "smh"), ("'smh'", "shm")),
        (("run", "latency", "--min", "64", "--max", "8"), ("64", "8")),
        (("run", "latency", "--sync", "maybe"), ("--sync", "window", "loop", "'maybe'")),
        (("run", "latency", "--format", "xml"), ("'xml'", "csv", "json")),
        (("run", "latency", "--library", "shm!broken"), ("'broken'", "corrupt")),
        (("run", "latency", "--ci", "2"), ("precision", "0", "1", "2.0")),
        (("run", "latency", "-W", "0"), ("message", "1", "0")),
        (("run", "latency", "-i", "0"), ("-i", "1", "0")),
        (("run", "latency", "-x", "-1"), ("--skip", "0", "-1")),
        (("run", "latency", "-z", "101"), ("percentile", "0", "100", "101")),
        (("run", "latency", "-o", "nowhere/there.json"), ("nowhere",)),
        (("compare", "here.json", "shm"), ("here.json", "shm")),
        (("compare", "here.json", "there.json"), ("here.json", NO_SUCH_FILE)),
        (("compare", "shm", "shm"), ("'shm,shm'",)),
        (("check", "--sizes", "6"), ("6 bytes", "float32", "2")),
        (("apps", "fft"), ("'fft'", "kmeans", "knn", "matmul")),
        (("apps", "matmul", "-n", "1"), ("speed-up", "2", "1")),
        (("selftest", "-n", "1"), ("ranks", "2", "1")),
        (("report", "here.json"), ("here.json", NO_SUCH_FILE)),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], names: tuple[str, ...]) -> None:
    done = hocket(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert_names(done.stderr, "hocket bench", *names)
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
