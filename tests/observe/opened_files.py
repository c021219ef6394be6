"""One file of each kind that `hocket open` shows, with known numbers; and a process that shows files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hocket.bench import Point, Result, Run
from hocket.bench.engine_times import to_text
from hocket.bench.layout import ResultLayout
from hocket.bench.writers import find_writer
from hocket.cli._output import json_text
from hocket.collectives import find_algorithm
from hocket.collectives.serialise import to_json
from hocket.observe import StoreClient
from hocket.pipeline import build, save_schedule
from hocket.session.simulated_step import SimulatedOperations, SimulatedStep
from hocket.session.simulation_file import SimulationFile
from hocket.trace.traffic import Traffic, TrafficStep
from hocket.tune import Machine, Observation, Observations, Row, Table, save_observations, save_table

from ..bench.engine_rows import engine_times
from .fabricated_fabric import fabric_file

_CARRIERS = {"shm": 2e-6, "mpi": 5e-6}
_SIZES = (1024, 65536)


def bench_run(factor: float = 1.0) -> Run:
    """Two libraries at two sizes, ten launches each; times of a size grow with the factor."""
    results = []
    for target, seconds in (("shm", 2e-6), ("mpi:mpich", 8e-6)):
        for nbytes in _SIZES:
            samples = tuple(factor * seconds * nbytes / 1024 * (1 + each / 1000) for each in range(20))
            point = Point("all_reduce", target, nbytes, dtype="float32")
            results.append(Result(point, 2, samples, calls=(), num_late=0, iterations=10, launches=(2,) * 10))
    return Run(tuple(results), core_factor=1.875, foreign_busy=0.0625, warnings=("4 ranks share 2 CPUs",))


def tuning_table() -> Table:
    """Two libraries at two sizes: at the larger one the second is clearly slower by 192 us."""
    rows = tuple(
        Row("all_reduce", "full", 2, nbytes, name, False, time_s, 0.99 * time_s, 1.01 * time_s)
        for name, seconds in _CARRIERS.items()
        for nbytes in _SIZES
        for time_s in [seconds * nbytes / 1024]
    )
    return Table(Machine("a processor", 2, 1, {"shm": "shared memory", "mpi": "MPICH"}), rows)


def observations() -> Observations:
    """A program that has used the slower library a thousand times: 3 us beyond the fastest each."""
    seen = Observation("all_reduce", "full", 2, 1, 1024, "mpi", "", (5e-6,) * 6, 1000)
    return Observations(("node-1",), (seen,))


def write_files(folder: Path) -> dict[str, Path]:
    """Write a file of each kind, and return them by kind; of the kind "bench" there is "before.json", too."""
    for name, factor in (("before", 1.0), ("bench", 2.0)):
        (folder / f"{name}.json").write_text(find_writer("json")(bench_run(factor), ResultLayout()))
    save_table(tuning_table(), folder / "tuning.json")
    save_observations(observations(), folder / "observations.json")
    save_schedule(build("zb-h1", 4, 8), folder / "pipeline.txt")
    (folder / "collective.json").write_text(to_json(find_algorithm("all_reduce", "ring").schedule(4)))
    steps = (TrafficStep("all_reduce", 4096, reduction="sum", compute_s=0.25), TrafficStep("barrier", 0))
    Traffic("a step", 4, "by hand", steps).save(folder / "traffic.json")
    ran = SimulatedStep(0.5, 0.375, (SimulatedOperations("all_reduce", 4096, 3, 0.0625, "ring"),))
    (folder / "simulation.json").write_text(SimulationFile("a step", 64, "by hand", "a link", ran).to_json())
    curves = {"loss": [1.5, 0.75, None], "val_loss": [2.0, 1.25, 1.125], "accuracy": [[0.25, 0.5]] * 3}
    training = {"format": "hocket training, version 1", "plan": "2 partitions", "epochs": [0, 1, 2], "history": curves}
    (folder / "training.json").write_text(json.dumps(training))
    (folder / "fabric.json").write_text(json_text(fabric_file().content()))
    (folder / "engines.json").write_text(to_text(engine_times()))
    return {path.stem: path for path in sorted(folder.iterdir()) if path.stem != "before"}


@contextmanager
def opened(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any], StoreClient]]:
    """A process of `hocket open`, what it has printed, and a client."""
    command = [sys.executable, "-m", "hocket.cli", "open", *map(str, arguments), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = json.loads(process.stdout.readline())
        with StoreClient(printed["url"], printed["page"].partition("#token=")[2], timeout=20) as client:
            yield process, printed, client
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def answers_of(*paths: Path) -> dict[str, Any]:
    """What the server answers for each of these files, by its kind."""
    from hocket.observe.serve.opened_results import open_results

    results = open_results(paths)
    return {each.kind: json.loads(results.answers[each.name]) for each in results.listed}
