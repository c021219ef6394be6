"""Rules for Open MPI's component `tuned`, in the format that its versions 4 and 5 read.

    OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename=FILE mpirun ...

Of Open MPI's algorithms those count that this project has as schedules, too, so that their times are known: measured
over MPI where the table has them, by the formula over the fitted link otherwise. Sizes are those of the array, or of
all ranks' blocks together, as Open MPI counts in these collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hocket.collectives import find_algorithm
from hocket.collectives.link import Link
from hocket.collectives.source import parse_algorithm
from hocket.tune.contest import WITH_BLOCKS
from hocket.tune.export import exporter
from hocket.tune.model import typical_link
from hocket.tune.sweep import SIZES
from hocket.tune.table import Table

_BACKEND = "mpi"
# Names and numbers of ompi/mca/coll/base/coll_base_functions.h, and of `ompi_info --param coll tuned --level 9`.
_COLLECTIVES = {"all_gather": 0, "all_reduce": 2, "all_to_all": 3, "broadcast": 7, "reduce": 11, "reduce_scatter": 13}
_ALGORITHMS = {
    "all_gather": {"bruck": 2, "recursive_doubling": 3, "ring": 4},
    "all_reduce": {"recursive_doubling": 3, "ring": 4, "segmented_ring": 5, "rabenseifner": 6},
    "all_to_all": {"pairwise": 2, "bruck": 3},
    "broadcast": {
        "flat": 1, "multi_chain": 2, "chain": 3, "binary_tree": 5, "binomial": 6, "scatter_bruck": 8, "scatter_ring": 9,
    },
    "reduce": {"chain": 3, "binary_tree": 4, "binomial": 5},
    "reduce_scatter": {"recursive_halving": 3},
}  # fmt: skip
_SEGMENT_UNIT = 1024


@dataclass(frozen=True)
class _Rule:
    least_nbytes: int
    number: int
    num_chains: int
    segment_nbytes: int
    comment: str


@exporter("ompi-classic", "a rules file for Open MPI 4 and 5 (coll_tuned_dynamic_rules_filename); tried with 5.0")
def write(table: Table, ranks: Sequence[int]) -> str:
    """Write rules for every collective and number of ranks."""
    link = next((fit.link for fit in table.fits if fit.backend == _BACKEND), typical_link(table.machine.num_hosts))
    lines = [f"{len(_COLLECTIVES)} # collectives; of {' '.join(table.machine.processor.split())}"]
    for op, number in _COLLECTIVES.items():
        by_ranks = {num_ranks: list(_rules(table, link, op, num_ranks)) for num_ranks in ranks if num_ranks > 1}
        by_ranks = {num_ranks: rules for num_ranks, rules in by_ranks.items() if rules}
        lines += [f"{number} # {op}", f"{len(by_ranks)} # numbers of ranks"]
        for num_ranks, rules in by_ranks.items():
            lines += [f"{num_ranks} # ranks", f"{len(rules)} # sizes"]
            lines += [
                f"{rule.least_nbytes} {rule.number} {rule.num_chains} {rule.segment_nbytes} # {rule.comment}"
                for rule in rules
            ]
    return "\n".join(lines) + "\n"


def _rules(table: Table, link: Link, op: str, num_ranks: int) -> Iterator[_Rule]:
    """One for every range of sizes with the same choice, from 0 on, which Open MPI asks for."""
    last: _Rule | None = None
    sizes = sorted({row.nbytes for row in table.rows if (row.op, row.num_ranks) == (op, num_ranks)} or set(SIZES))
    for nbytes in sizes:
        total = nbytes * num_ranks if op in WITH_BLOCKS else nbytes
        best = min(_candidates(table, link, op, num_ranks, nbytes, total), default=None)
        if best is None:
            return
        seconds, source, name, num_blocks = best
        segment = max(1, total // num_blocks // _SEGMENT_UNIT) * _SEGMENT_UNIT if num_blocks > 1 else 0
        rule = _Rule(
            0 if last is None else total,
            _ALGORITHMS[op][name],
            find_algorithm(op, name).parameters.get("num_chains", 0),
            segment,
            f"{name}, {seconds * 1e6:.3g} us {source} at {total} B",
        )
        if last is None or (rule.number, rule.segment_nbytes) != (last.number, last.segment_nbytes):
            yield rule
        last = rule


def _candidates(
    table: Table, link: Link, op: str, num_ranks: int, nbytes: int, total: int
) -> Iterator[tuple[float, str, str, int]]:
    """Yield (seconds, where from, algorithm, blocks)."""
    measured: dict[str, tuple[float, str, str, int]] = {}
    sizes = table.cells.get((op, "full" if "reduce" in op else "moved", num_ranks, False), {})
    for row in sizes.get(nbytes, {}).values():
        if row.backend == _BACKEND and row.algorithm:
            algorithm, parameters = parse_algorithm(op, row.algorithm)
            found = row.seconds, "measured", algorithm.name, _num_blocks(parameters, num_ranks)
            measured[algorithm.name] = min(found, measured.get(algorithm.name, found))
    for name in _ALGORITHMS[op]:
        algorithm = find_algorithm(op, name)
        if name in measured:
            yield measured[name]
        elif algorithm.restriction(num_ranks) is None:
            parameters = dict(algorithm.parameters)
            if "num_blocks" in parameters:
                parameters["num_blocks"] = algorithm.best_num_blocks(link, num_ranks, total)
            seconds = algorithm.seconds(link, num_ranks, total, **parameters)
            yield seconds, "modelled", name, _num_blocks(parameters, num_ranks)


def _num_blocks(parameters: dict[str, int], num_ranks: int) -> int:
    """In how many segments Open MPI is to cut the array."""
    return parameters.get("num_blocks", parameters.get("num_segments", 0) * num_ranks or 1)
