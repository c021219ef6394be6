"""How much of an asynchronous all_reduce a matrix product of equal length hides.

Between two hosts of the laboratory (lab.py), one rank on each, over a link of 1 Gbit/s, where hiding at least 60 % is
wanted; and over shared memory of one host, where the processors that multiply are those that move the data: there it
is told, and what both together take of the processors' time.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median

from lab import NUM_HOSTS, Lab, find_obstacle
from libraries import job, lab_job, size_name
from overlap_rank import PARTS

from hocket.errors import BackendUnavailable
from hocket.measure import (
    Coordinator,
    Key,
    Measurement,
    Row,
    Settings,
    finish,
    measure,
    median_interval,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
from hocket.measure.judge import LOW_END, MIN_ROUNDS

RANK_SCRIPT = Path(__file__).with_name("overlap_rank.py")
MIB = 1 << 20
SIZES = (MIB, 4 * MIB, 16 * MIB)
RATE_GBIT_S = 1.0
LEAST_HIDDEN = 0.6


def two_hosts(settings: Settings, folder: Path) -> tuple[list[Row], Measurement]:
    backends, file = ("mpi", "gloo"), folder / "hosts.json"
    argv = (sys.executable, str(RANK_SCRIPT), "hocket", str(file), ",".join(backends), *map(str, SIZES))
    with (
        Lab(RATE_GBIT_S) as lab,
        Coordinator([lab_job("hocket", lab, argv, 1)], start_timeout_s=120.0) as coordinator,
        progress("two hosts") as on_round,
    ):
        measurement = measure(coordinator, settings, on_round=on_round)
    where = f"{NUM_HOSTS} hosts, {RATE_GBIT_S:g} Gbit/s"
    # Either library may be chosen: what is wanted of the best is told of the other.
    cases = [f"{backend}, {size_name(nbytes)}" for backend in backends for nbytes in SIZES]
    return [
        hidden(measurement, case, where, LEAST_HIDDEN if case.startswith("mpi") else None) for case in cases
    ], measurement


def one_host(settings: Settings, folder: Path) -> tuple[list[Row], Measurement]:
    backends, file = ("shm", "symmetric"), folder / "host.json"
    arguments = [str(file), ",".join(backends), *map(str, SIZES)]
    with Coordinator([job("hocket", RANK_SCRIPT, arguments, 2)]) as coordinator, progress("one host") as on_round:
        measurement = measure(coordinator, settings, on_round=on_round)
    rows = []
    spent = {(case, name): seconds for case, name, seconds in json.loads(file.read_text())}
    for case in dict.fromkeys(key.case for key in measurement.iterations):
        rows.append(hidden(measurement, case, "one host", None))
        apart = 1e6 * (spent[case, "all_reduce"] + spent[case, "product"])
        both = 1e6 * spent[case, "together"]
        label = f"one host: {case}, processor time of rank 0, together"
        rows.append(Row(label, "one after the other", both, apart, "us", apart / both, None, None, None))
    return rows, measurement


def hidden(measurement: Measurement, case: str, where: str, target: float | None) -> Row:
    """The share of the all_reduce's time (of the shorter one's, if they differ) that does not come on top."""
    reduce, multiply, together = ([each.seconds[Key(case, part)] for each in measurement.rounds] for part in PARTS)
    shares = [(r + m - t) / min(r, m) for r, m, t in zip(reduce, multiply, together, strict=True)]
    interval = median_interval(shares) if len(shares) >= 6 else None
    is_judged = target is not None and len(shares) >= MIN_ROUNDS and interval is not None
    return Row(
        case=f"{where}: {case}, product and all_reduce together",
        rival="one after the other",
        ours=1e6 * median(together),
        theirs=1e6 * median([r + m for r, m in zip(reduce, multiply, strict=True)]),
        unit="us",
        ratio=median(shares),
        interval=interval,
        target=target,
        holds=median(shares) >= target and interval[0] >= LOW_END * target if is_judged else None,
    )


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--part", action="append", choices=("one host", "two hosts"), help="may be repeated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the laboratory's end
    parts = options.part or ["one host", "two hosts"]
    if "two hosts" in parts and (reason := find_obstacle()) is not None:
        raise BackendUnavailable(f"{reason}; --part names what can do without")
    rows: list[Row] = []
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for part, run in (("two hosts", two_hosts), ("one host", one_host)):
            if part in parts:
                found, measurement = run(settings_of(options), Path(folder))
                rows += found
                measurements.append(measurement)
    for measurement in measurements:
        rows += null_rows(measurement)
    claim = "an all_reduce behind a matrix product of equal length; the ratio is the share of it that is hidden"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
