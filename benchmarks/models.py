"""Step times of five trainings, two ranks: over gloo, MPI, shared memory, the tuned mix of all, and symmetric memory.

The three examples (gpt: sharded optimizer; moe: experts exchange tokens; dlrm: exchange of embeddings) use hocket's
communicator, each variant with another policy. The transformer is trained by torch's own DDP and FSDP2: "gloo" is
torch's backend of that name there, the others are hocket's with those libraries. All variants live in the same two
processes and take turns; they must have the same losses. The mix chooses by a table that the ranks measure first;
"symmetric" does as well, and has its buckets in the memory that the ranks share (`Communicator.zeros`, and for torch's
DDP and FSDP2 `hocket.torch.use_symmetric_buckets` and the process group's allocator).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from libraries import job

from hocket.measure import (
    Comparison,
    Coordinator,
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

RANK_SCRIPT = Path(__file__).with_name("models_rank.py")
VARIANTS = ("mix", "gloo", "mpi", "shm", "symmetric")
OURS, SYMMETRIC = "mix", "symmetric"


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Coordinator([job(str(Path(folder, "table.json")), RANK_SCRIPT, [], 2)], start_timeout_s=600.0) as coordinator,
        progress("training steps, 2 ranks") as on_round,
    ):
        measured = measure(coordinator, settings_of(options), on_round=on_round)
    rows = []
    for case in dict.fromkeys(key.case for key in measured.iterations):
        for rival in VARIANTS:
            if rival not in (OURS, SYMMETRIC):
                label = f"{case}: the mix against {rival} alone"
                rows.append(judge(measured, Comparison(case, OURS, (rival,), label=label, unit="ms")))
        for rival in ("gloo", OURS):
            label = f"{case}: symmetric memory against {'plain hocket' if rival == OURS else rival}"
            rows.append(judge(measured, Comparison(case, SYMMETRIC, (rival,), label=label, unit="ms")))
    claim = "a training step over the tuned mix of libraries, against each library alone"
    return finish(report(claim, [*rows, *null_rows(measured, unit="ms")], [measured]), options)


if __name__ == "__main__":
    run_script(main)
