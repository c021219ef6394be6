"""Rules for the example tuner plugin of NCCL, as CSV.

    NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=FILE ...

Ring and tree are what NCCL and this project both have. The protocol and the number of channels are left to NCCL where
its format allows that. Links between GPUs were not measured here: the times are those of the link that the table has
for its fastest backend, so take the rules as a shape to edit. The format is checked, no GPU has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from hocket.tune.export import exporter
from hocket.tune.exporters._choices import choices, first_of_each
from hocket.tune.table import Table

# With "#": to the plugin any other line is a rule, of all_reduce where it does not know the collective.
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


@exporter("nccl", "rules for NCCL's example tuner plugin; modelled, checked against its description, not tried")
def write(table: Table, ranks: Sequence[int]) -> str:
    """Write one line a range of sizes."""
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
