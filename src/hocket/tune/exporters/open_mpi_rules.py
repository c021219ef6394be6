"""Rules for Open MPI's component `tuned`, in both formats that it reads.

    OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename=FILE mpirun ...

The formats, the numbers and the definition of message sizes are described in docs.open-mpi.org, Tuning Collectives,
"tuned". Sizes are those of the array, or of all ranks' blocks together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from hocket.collectives import find_algorithm
from hocket.tune.export import exporter
from hocket.tune.exporters._choices import Choice, choices, first_of_each
from hocket.tune.table import Table

_BACKEND = "mpi"
# Open MPI's number and name of each collective, and its number and name of each schedule.
_COLLECTIVES = {
    "all_gather": (0, "allgather"),
    "all_reduce": (2, "allreduce"),
    "all_to_all": (3, "alltoall"),
    "broadcast": (7, "bcast"),
    "reduce": (11, "reduce"),
    "reduce_scatter": (13, "reduce_scatter_block"),
}
_ALGORITHMS = {
    "all_gather": {"bruck": (2, "bruck"), "recursive_doubling": (3, "recursive_doubling"), "ring": (4, "ring")},
    "all_reduce": {
        "recursive_doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "segmented_ring": (5, "segmented_ring"),
        "rabenseifner": (6, "rabenseifner"),
    },
    "all_to_all": {"pairwise": (2, "pairwise"), "bruck": (3, "modified_bruck")},
    "broadcast": {
        "flat": (1, "basic_linear"),
        "multi_chain": (2, "chain"),
        "chain": (3, "pipeline"),
        "binary_tree": (5, "binary_tree"),
        "binomial": (6, "binomial"),
        "scatter_bruck": (8, "scatter_allgather"),
        "scatter_ring": (9, "scatter_allgather_ring"),
    },
    "reduce": {"chain": (3, "pipeline"), "binary_tree": (4, "binary"), "binomial": (5, "binomial")},
    "reduce_scatter": {"recursive_halving": (3, "recursive_halving")},
}


_Rules = list[tuple[int, Choice]]


def _all_rules(table: Table, ranks: Sequence[int]) -> dict[str, dict[int, _Rules]]:
    """Return, by collective and number of ranks, the first size and the choice of every range of sizes with one choice.

    The first range begins at 0, as Open MPI requires.
    """
    found: dict[str, dict[int, _Rules]] = {op: {} for op in _COLLECTIVES}
    for op, num_ranks, at_sizes in choices(table, _ALGORITHMS, ranks, _BACKEND):
        firsts = first_of_each(at_sizes, attrgetter("algorithm", "segment_nbytes"))
        found[op][num_ranks] = [(each.nbytes if place else 0, each) for place, each in enumerate(firsts)]
    return found


def _num_chains(op: str, choice: Choice) -> int:
    return int(find_algorithm(op, choice.algorithm).parameters.get("num_chains", 0))


@exporter("ompi-classic", "a rules file for Open MPI 4 and later (coll_tuned_dynamic_rules_filename); tested with 5.0")
def write_classic(table: Table, ranks: Sequence[int]) -> str:
    """Write the classic format, which has only numbers and comments."""
    lines = [f"{len(_COLLECTIVES)} # collectives; of {' '.join(table.machine.processor.split())}"]
    for op, by_ranks in _all_rules(table, ranks).items():
        lines += [f"{_COLLECTIVES[op][0]} # {op}", f"{len(by_ranks)} # numbers of ranks"]
        for num_ranks, rules in by_ranks.items():
            lines += [f"{num_ranks} # ranks", f"{len(rules)} # sizes"]
            for least, rule in rules:
                number, _ = _ALGORITHMS[op][rule.algorithm]
                lines.append(f"{least} {number} {_num_chains(op, rule)} {rule.segment_nbytes} # {rule.comment}")
    return "\n".join(lines) + "\n"


@exporter("ompi-json", "a rules file for Open MPI 6, version 3; checked against its description, not tested with it")
def write_json(table: Table, ranks: Sequence[int]) -> str:
    """Write the format of version 3; a number of ranks also stands for those up to the next one."""
    collectives: dict[str, list[dict[str, Any]]] = {}
    for op, by_ranks in _all_rules(table, ranks).items():
        numbers = list(by_ranks)
        for num_ranks, following in zip(numbers, [*numbers[1:], None], strict=True):
            rules = by_ranks[num_ranks]
            borders = [*(least - 1 for least, _ in rules[1:]), "inf"]
            collectives.setdefault(_COLLECTIVES[op][1], []).append(
                {
                    "comm_size_min": num_ranks,
                    "comm_size_max": "inf" if following is None else following - 1,
                    "rules": [
                        {"msg_size_min": least, "msg_size_max": most, "alg": _ALGORITHMS[op][rule.algorithm][1]}
                        | ({"faninout": num_chains} if (num_chains := _num_chains(op, rule)) else {})
                        | ({"segsize": rule.segment_nbytes} if rule.segment_nbytes else {})
                        for (least, rule), most in zip(rules, borders, strict=True)
                    ],
                }
            )
    return json.dumps({"rule_file_version": 3, "module": "tuned", "collectives": collectives}, indent=1) + "\n"
