"""Rows of `hocket bench engines` for more ranks than there are: steps of the engines on virtual ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hocket.bench.engine_times import EngineTime
from hocket.bench.gradient_shapes import MODELS

if TYPE_CHECKING:
    from hocket.sim import Hosts, Uniform


def simulate_rows(
    rows: Sequence[EngineTime], numbers: Sequence[int], fabric: Uniform | Hosts
) -> tuple[list[EngineTime], int]:
    """Return a row for each measured one and each number of ranks, and how many are missing after Ctrl-C.

    A server works as long for each byte as the measurement says: there its work is nearly all of a step.

    Args:
        rows: measured rows.
        numbers: numbers of ranks.
        fabric: what connects them.
    """
    from hocket.cli._engine_names import read_engine
    from hocket.measure.progress_bar import progress
    from hocket.session import simulate
    from hocket.sim import Hosts
    from hocket.train.engines.timing import float32_specs
    from hocket.train.engines.virtual_step import servers_of, virtual_step

    by_numbers = [
        (row, num_ranks)
        for case in dict.fromkeys((row.model, row.batch) for row in rows)
        for num_ranks in numbers
        for row in rows
        if (row.model, row.batch) == case
    ]
    simulated = []
    with progress("simulate", "steps") as show, suppress(KeyboardInterrupt):
        for number, (row, num_ranks) in enumerate(by_numbers):
            show(number, len(by_numbers), f"{row.model}, {row.engine}, {num_ranks} ranks")
            choice = read_engine(row.engine)
            num_servers = servers_of(choice)
            tensors = float32_specs(MODELS[row.model]())
            ran = simulate(
                virtual_step, num_ranks + num_servers, choice, tensors, row.compute_ms / 1e3, _server_s(row, rows),
                fabric=fabric, moves_data=False,
            )  # fmt: skip
            ms = 1e3 * ran.results[0]
            per_host = fabric.ranks_per_host if isinstance(fabric, Hosts) else 1
            simulated.append(
                EngineTime(
                    row.model, row.engine, row.batch, num_ranks, -(-num_ranks // per_host), row.nbytes,
                    row.compute_ms, ms, ms, ms, True,
                )
            )  # fmt: skip
    return simulated, len(by_numbers) - len(simulated)


def _server_s(row: EngineTime, rows: Sequence[EngineTime]) -> float:
    """Return the seconds that a server works for each byte that comes or goes; 0: there are no servers."""
    from hocket.cli._engine_names import read_engine
    from hocket.train.engines.virtual_step import servers_of

    num_servers = servers_of(read_engine(row.engine))
    same = [each for each in rows if (each.model, each.engine) == (row.model, row.engine)]
    least = min(same, key=lambda each: each.compute_ms)
    exchange_s = max(least.ms - least.compute_ms, 0.0) / 1e3
    return exchange_s * num_servers / (2 * least.num_ranks * least.nbytes)
