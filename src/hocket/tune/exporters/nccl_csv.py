"""Rules for the example tuner plugin of NCCL, as CSV.

    NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=FILE ...

NCCL and hocket both have ring and tree algorithms. The choice of the protocol and of the number of channels is left to
NCCL where the format allows it. Links between GPUs were not measured: the times are those of the table's link of its
fastest backend, so use the rules as a draft to edit. The format was checked, but not tested on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from hocket.tune.export import exporter
from hocket.tune.exporters._choices import choices, first_of_each
from hocket.tune.table import Table

# It begins with "#", since the plugin reads any other line as a rule; for an unknown collective, as one for all_reduce.
HEADER = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
_ALGORITHMS = {
    "broadcast": {"chain": "ring"},
    "reduce": {"chain": "ring"},
    "all_gather": {"ring": "ring"},
    "reduce_scatter": {"ring": "ring"},
    "all_reduce": {"ring": "ring", "double_tree": "tree"},
}
_MOST_NBYTES = (1 << 64) - 1
_ANY = -1


@exporter(
    "nccl", "rules for NCCL's example tuner plugin; modelled, checked against its description, not tested with NCCL"
)
def write(table: Table, ranks: Sequence[int]) -> str:
    """Write one line per range of sizes."""
    backend = min(table.fits, key=lambda fit: fit.beta_s).backend if table.fits else next(iter(table.machine.backends))
    lines = [HEADER]
    for op, num_ranks, found in choices(table, _ALGORITHMS, ranks, backend):
        names = _ALGORITHMS[op]
        firsts = first_of_each(found, attrgetter("algorithm"))
        borders = [0, *(choice.nbytes for choice in firsts[1:]), _MOST_NBYTES + 1]
        for choice, (least, following) in zip(firsts, pairwise(borders), strict=True):
            where = table.machine.num_hosts, num_ranks
            sizes = least, following - 1
            fields = op.replace("_", ""), *sizes, names[choice.algorithm], "simple", _ANY, *where, _ANY, _ANY
            lines.append(",".join(map(str, fields)))
    return "\n".join(lines) + "\n"
