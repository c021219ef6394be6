"""all_reduce between processes of this machine, from Python: hocket against gloo, Open MPI and MPICH.

Of hocket on arrays of any kind, and on arrays in the memory that the ranks share (`comm.empty`); the latter also
against what the memory allows: the additions and writes alone, on memory of every rank's own. Where nobody writes to
shared arrays in between, each rank's slice stays in its own caches; in rows "written before" every rank fills its array
before each all_reduce, and the time of that counts, of hocket as of its rivals.

Every library has its own job of the same number of ranks, all of them live at once, and in every round each form of
each library has its turn in random order while the others sleep. One time is the slowest rank's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from libraries import job, size_name

from hocket.measure import (
    Comparison,
    Coordinator,
    Measurement,
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

RANK_SCRIPT = Path(__file__).with_name("allreduce_rank.py")
OURS = "hocket comm.all_reduce(array)"
LIBRARIES = ("hocket", "hocket_torch", "gloo", "openmpi", "mpich")
MPIS = ("openmpi", "mpich")
KIB, MIB = 1 << 10, 1 << 20

# size in bytes -> ((rivals, target), ...)
TARGETS = {
    16: ((MPIS, 1.7), (("gloo",), 100.0)),
    64 * KIB: ((("gloo", *MPIS), 1.3),),
    MIB: ((("gloo", *MPIS), 1.3),),
    16 * MIB: ((("gloo", *MPIS), 1.2),),
    64 * MIB: ((("gloo", *MPIS), 1.2),),
}
SYMMETRIC = "hocket comm.all_reduce(comm.empty(...))"
SYMMETRIC_TARGETS = {MIB: 4.0, 16 * MIB: 3.0}
MOST_OVER_BOUND = 1.5
OVERSUBSCRIBED_RANKS = (4, 8)
OVERSUBSCRIBED_TARGET = 1.0


def size(text: str) -> int:
    """The number of bytes that a text names: "16", "16B", "64KiB", "1MiB"."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    scale = {"K": KIB, "M": MIB}.get(number[-1:], 1)
    nbytes = int(number.rstrip("KM ")) * scale
    if nbytes <= 0 or nbytes % 4:
        raise argparse.ArgumentTypeError(f"{text}: a size must be a positive multiple of 4 bytes (float32)")
    return nbytes


def measured(libraries: tuple[str, ...], num_ranks: int, sizes: list[int], settings: Settings) -> Measurement:
    """Measures all forms of the libraries; ranks that have a core each are bound to it."""
    pinned = "pinned" if num_ranks <= 2 else "free"
    arguments = [pinned, *map(str, sizes)]
    jobs = [job(library, RANK_SCRIPT, arguments, num_ranks) for library in libraries]
    with Coordinator(jobs) as coordinator, progress(f"all_reduce, {num_ranks} ranks") as on_round:
        return measure(coordinator, settings, on_round=on_round)


def forms(measurement: Measurement, case: str, libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The names of all forms of some libraries; a form's name starts with its library's."""
    return tuple(key.name for key in measurement.iterations if key.case == case and key.name.split()[0] in libraries)


def two_rank_rows(measurement: Measurement, sizes: list[int]) -> list[Row]:
    """Rows with a target for NumPy arrays, rows without for torch tensors."""
    rows = []
    for nbytes in sizes:
        case = size_name(nbytes)
        for rivals, target in TARGETS.get(nbytes, ((("gloo", *MPIS), None),)):
            names = forms(measurement, case, rivals)
            rows.append(judge(measurement, Comparison(case, OURS, names, target, label=f"{case}, NumPy")))
        every = forms(measurement, case, ("gloo", *MPIS))
        label = f"{case}, symmetric memory"
        target = SYMMETRIC_TARGETS.get(nbytes)
        rows.append(judge(measurement, Comparison(case, SYMMETRIC, every, target, label=label)))
        if target is not None:
            again = f"{case}, written"
            rivals = forms(measurement, again, ("gloo", *MPIS))
            rows.append(judge(measurement, Comparison(again, SYMMETRIC, rivals, label=f"{label}, written before")))
            bound = forms(measurement, case, ("bound:",))
            rows.append(judge(measurement, Comparison(case, SYMMETRIC, bound, 1 / MOST_OVER_BOUND, label=label)))
        for ours, label in (
            ("hocket comm.all_reduce(tensor)", "torch tensor"),
            ("hocket dist.all_reduce(tensor)", "torch.distributed"),
        ):
            gloo = forms(measurement, case, ("gloo",))
            rows.append(judge(measurement, Comparison(case, ours, gloo, label=f"{case}, {label}")))
    return rows


def oversubscribed_row(measurement: Measurement) -> Row:
    """8 bytes with more ranks than cores."""
    label = f"8 B, {measurement.num_ranks} ranks on 2 cores (oversubscribed)"
    rivals = forms(measurement, "8 B", ("openmpi",))
    return judge(measurement, Comparison("8 B", OURS, rivals, OVERSUBSCRIBED_TARGET, label=label))


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", type=size, nargs="+", default=list(TARGETS), metavar="SIZE", help="such as 16 64KiB")
    parser.add_argument("--no-oversubscribed", action="store_true", help="leave out the rows with 4 and 8 ranks")
    options = parser.parse_args()
    settings = settings_of(options)
    two = measured(LIBRARIES, 2, options.sizes, settings)
    crowds = []
    if not options.no_oversubscribed:
        crowds = [measured(("hocket", "openmpi"), n, [8], settings) for n in OVERSUBSCRIBED_RANKS]
    rows = [*two_rank_rows(two, options.sizes), *map(oversubscribed_row, crowds), *null_rows(two)]
    for crowd in crowds:
        rows += null_rows(crowd)
    claim = (
        "all_reduce of float32 from Python, against each library's fastest form; ours is comm.all_reduce(x), in place"
    )
    return finish(report(claim, rows, [two, *crowds]), options)


if __name__ == "__main__":
    run_script(main)
