"""`hocket bench engines`: measured and simulated rows, its file and picture; bad input is found before ranks start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.bench.engine_times import EngineTimes
from hocket.cli._application import run_command_line
from hocket.cli._engine_names import read_engine
from hocket.train import gradient_engines
from hocket.train.engines.engine import SummingEngine

from ..naming import assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(150)

SUMMING = [name for name, engine in gradient_engines().items() if issubclass(engine, SummingEngine)]


def test_all_engines_are_measured_and_simulated(tmp_path: Path) -> None:
    written, picture = tmp_path / "engines.json", tmp_path / "engines.png"
    done = hocket(
        tmp_path, "bench", "engines", "--model", "mobilenet", "--engine", ";".join(SUMMING), "--compute", "0.1",
        "--batch", "1,2", "--scale", "4", "--ranks-per-host", "2", "--budget", "1", "-o", str(written), "--picture",
        str(picture), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(written.read_text())
    times = EngineTimes.from_json(written.read_text(), str(written))
    measured = {(each.engine, each.batch) for each in times.rows if not each.is_simulated}
    simulated = {(each.engine, each.batch, each.num_ranks, each.num_hosts) for each in times.rows if each.is_simulated}
    assert measured == {(name, batch) for name in SUMMING for batch in (1, 2)}
    assert simulated == {(name, batch, 4, 2) for name in SUMMING for batch in (1, 2)}
    assert {each.compute_ms for each in times.rows} == {0.1, 0.2}
    assert "1.25 GB/s" in times.link
    assert picture.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--model", "resnet51"], ("resnet51", "resnet50", "mobilenet", "gpt")),
        (["--model", "gpt,gpt"], ("--model", "gpt")),
        (["--engine", "rings"], ("'rings'", "'ring'")),
        (["--engine", "mix; ;ring"], ("--engine", "''")),
        (["--engine", "mix;mix"], ("--engine", "mix")),
        (["--engine", "ring cycle_ms=5"], ("'ring'", "'cycle_ms'", "backend")),
        (["--engine", "fused cycle_ms"], ("NAME=VALUE", "'cycle_ms'")),
        (["--engine", "parameter-server-async"], ("--engine", "'parameter-server-async'")),
        (["--engine", "fused cycle_ms=-1"], ("'fused'", "cycle_ms", "0", "1000", "-1")),
        (["--engine", "mix;ddp backend=foo"], ("'ddp'", "backend=foo", "'foo'", "shm")),
        (["--engine", "ddp backend=gloo", "--library", "shm"], ("'ddp'", "backend=gloo", "shm", "--library")),
        (["--engine", "parameter-server payload=foo"], ("'parameter-server'", "payload=foo", "grpc")),
        (["--engine", "parameter-server num_servers=99"], ("mobilenet", "num_servers", "99", "83")),
        (["--engine", "parameter-server ports=a"], ("ports", "['a']")),
        (["--engine", "parameter-server num_servers=2 ports=45801"], ("ports", "2", "1")),
        (["--engine", "parameter-server ports=45801"], ("45801", "--model")),
        (["--library", "smh"], ("'smh'", "'shm'", "gloo")),
        (["--library", "mpi+gloos"], ("'gloos'", "'gloo'")),
        (["--library", "shm,shm"], ("--library", "shm")),
        (["--library", "sim"], ("'sim'",)),
        (["--compute", "-1"], ("--compute", "0", "10000", "-1")),
        (["--compute", "nan"], ("--compute", "nan")),
        (["--batch", "0"], ("--batch", "1", "'0'")),
        (["--batch", "8,x"], ("--batch", "'8,x'")),
        (["--batch", "8,16"], ("--batch", "--compute")),
        (["--scale", "4,4"], ("--scale", "4, 4")),
        (["--scale", "100000"], ("--scale", "1024", "'100000'")),
        (["--scale", "4", "--bandwidth", "0"], ("--bandwidth", "0")),
        (["--scale", "4", "--latency", "-1"], ("--latency", "0", "-1.0")),
        (["--scale", "4", "--ranks-per-host", "0"], ("--ranks-per-host", "1", "0")),
        (["-n", "0"], ("-n", "1", "0")),
        (["-o", "absent/engines.json"], "absent"),
        (["--picture", "engines.xyz"], "xyz"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    options: list[str], names: str | tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["bench", "engines", *options]) == 2
    told = capsys.readouterr().err
    assert_names(told, "hocket bench", *((names,) if isinstance(names, str) else names))
    assert len(told.strip().splitlines()) == 1


def test_a_sequence_of_ports_and_one_rank(tmp_path: Path) -> None:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (first, second)]
    engine = f"parameter-server num_servers=2 ports={ports[0]},{ports[1]}"
    assert read_engine(engine).options["ports"] == ports
    assert read_engine(f"parameter-server ports={ports[0]}").options["ports"] == ports[:1]
    done = hocket(
        tmp_path, "bench", "engines", "--model", "mobilenet", "--engine", engine, "-n", "1", "--budget", "0.1"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "1 rank", "1 host", *map(str, ports))


@pytest.mark.parametrize(("word", "is_measured"), [("rounds", False), ("steps", True)])
def test_what_was_measured_stays_when_it_is_interrupted(tmp_path: Path, word: str, is_measured: bool) -> None:
    """SIGINT comes with the first line of progress, of measuring or of simulating."""
    written = tmp_path / "engines.json"
    options = ["--model", "resnet50", "--engine", "pipelined-ring;mix", "--scale", "256,512,1024", "-o", str(written)]
    command = [sys.executable, "-m", "hocket.cli", "bench", "engines", *options]
    with subprocess.Popen(
        [*command, "--budget", "0.1" if is_measured else "60"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert any(word in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = [line for line in told.splitlines() if line.startswith("hocket bench:")]
    assert len(lines) == 1
    assert_names(lines[0], "SIGINT", *(["6"] if is_measured else []))
    assert "KeyboardInterrupt" not in told and "Traceback" not in told
    assert ("resnet50" in out) == written.exists() == is_measured
    if is_measured:
        times = EngineTimes.from_json(written.read_text(), str(written))
        assert {each.engine for each in times.rows if not each.is_simulated} == {"pipelined-ring", "mix"}


def test_help_of_open_names_these_files(tmp_path: Path) -> None:
    told = " ".join(hocket(tmp_path, "open", "--help").stdout.split())
    assert_names(told, "hocket bench engines", "-o")


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        engine = f"parameter-server ports={port}"
        done = hocket(tmp_path, "bench", "engines", "--model", "mobilenet", "--engine", engine, "--budget", "0.1")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("hocket"))  # gRPC may log more
    assert_names(line, "hocket bench", "rank 0", port)
    assert "Traceback" not in done.stderr
