"""One operation over two libraries at once, where each has a link of its own, and where they share one.

One rank on each of two hosts of the laboratory (lab.py), joined by one or two links of 1 Gbit/s. MPICH is
told to use the first (UCX_NET_DEVICES), gloo the second if there is one. A table is measured first, as by `hocket tune
run`; what it chooses has to be as good as the best of all three, with one link as with two. Beside them stands MPICH in
a job of its own that may use all links: where a library can do that by itself, nothing has to be split.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab import Lab, find_obstacle
from libraries import lab_job, size_name
from split_rank import ALL_LINKS, BOTH, CHOICE, OPS

from hocket.errors import BackendUnavailable
from hocket.measure import (
    Comparison,
    Coordinator,
    Job,
    Measurement,
    Process,
    Row,
    Settings,
    finish,
    judge,
    measure,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)

RANK_SCRIPT = Path(__file__).with_name("split_rank.py")
MIB = 1 << 20
SIZES = (64 << 10, MIB, 4 * MIB, 16 * MIB)
RATE_GBIT_S = 1.0
LEAST_GAIN = 1.5
LEAST_GAIN_FROM = 4 * MIB
AS_GOOD = 0.95
ALONE = ("mpi", "gloo")


def with_variables(job: Job, **variables: str) -> Job:
    processes = tuple(Process(each.argv, {**each.env, **variables}) for each in job.processes)
    return Job(job.name, job.num_ranks, processes)


def measured(num_links: int, settings: Settings) -> tuple[list[Row], Measurement]:
    where = f"2 hosts, {num_links} link{'s' if num_links > 1 else ''} of {RATE_GBIT_S:g} Gbit/s"
    with Lab(RATE_GBIT_S, num_links) as lab, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "said.json"
        sizes = [str(nbytes) for nbytes in SIZES]
        ours = lab_job("hocket", lab, (sys.executable, str(RANK_SCRIPT), "hocket", str(file), *sizes), 1)
        jobs = [with_variables(ours, GLOO_SOCKET_IFNAME=lab.devices[-1], UCX_NET_DEVICES=lab.devices[0])]
        if num_links > 1:
            rival = lab_job("mpich", lab, (sys.executable, str(RANK_SCRIPT), "mpich", "-", *sizes), 1)
            jobs.append(with_variables(rival, MASTER_PORT="29600"))
        with Coordinator(jobs, start_timeout_s=400.0) as coordinator, progress(where) as on_round:
            measurement = measure(coordinator, settings, on_round=on_round)
        said = json.loads(file.read_text())
    rows = []
    for op in OPS:
        for nbytes in SIZES:
            rows += rows_of(measurement, said, where, f"{op} {size_name(nbytes)}", num_links, nbytes)
    return rows, measurement


def rows_of(
    measurement: Measurement, said: dict[str, Any], where: str, case: str, num_links: int, nbytes: int
) -> list[Row]:
    sent = ", ".join(f"{count / 1024:.0f} KiB over {device}" for device, count in sorted(said[case]["sent"].items()))
    target = LEAST_GAIN if num_links > 1 and nbytes >= LEAST_GAIN_FROM else None
    labels = {BOTH: f"{where}: {case}, both ({sent})", CHOICE: f"{where}: {case}, the table's: {said[case]['chosen']}"}
    comparisons = [Comparison(case, BOTH, ALONE, target=target, needs_cores=False, label=labels[BOTH])]
    if num_links > 1:
        comparisons.append(Comparison(case, BOTH, (ALL_LINKS,), needs_cores=False, label=labels[BOTH]))
    every = (*ALONE, BOTH)
    comparisons.append(Comparison(case, CHOICE, every, target=AS_GOOD, needs_cores=False, label=labels[CHOICE]))
    return [judge(measurement, each) for each in comparisons]


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--links", action="append", type=int, choices=(1, 2), help="may be repeated; by default both")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the laboratory's end
    if (reason := find_obstacle()) is not None:
        raise BackendUnavailable(reason)
    rows: list[Row] = []
    measurements: list[Measurement] = []
    for num_links in options.links or (2, 1):
        found, measurement = measured(num_links, settings_of(options))
        rows += found
        measurements.append(measurement)
    for measurement in measurements:
        rows += null_rows(measurement)
    return finish(report("one operation over two libraries at once", rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
