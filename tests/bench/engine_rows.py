"""Times of gradient engines as a measurement on 4 ranks and a simulation give them, with known numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.bench.engine_times import EngineTime, EngineTimes

LINK = "100 Gbit/s links with 5 us"
ENGINES = ("mix", "ddp", "ring", "parameter-server payload=shm")
NBYTES = {"resnet50": 102_228_128, "mobilenet": 16_927_904, "gpt": 497_759_232}
RANKS = (8, 64, 512)


def engine_times(
    models: Sequence[str] = tuple(NBYTES), batches: Sequence[int] = (1, 32), ranks: Sequence[int] = RANKS
) -> EngineTimes:
    """Return times in which each engine takes longer than the one before.

    Intervals go from 3 % below to 5 % above. "ddp" takes 5 % longer than "mix", so that both overlap, but for gpt twice
    as long.

    Args:
        models, batches: that were measured, and simulated.
        ranks: numbers of virtual ranks; empty: nothing was simulated.
    """
    rows = []
    for model in models:
        for batch in batches:
            for place, engine in enumerate(ENGINES):
                factor = (1.0, 2.0 if model == "gpt" else 1.05, 3.0, 4.5)[place]
                ms = factor * (NBYTES[model] / 2e6 + 0.25 * batch)
                rows.append(EngineTime(model, engine, batch, 4, 1, NBYTES[model], 0.0, ms, 0.97 * ms, 1.05 * ms, False))
                for num_ranks in ranks:
                    late = ms * (1 + place * num_ranks / 64)
                    rows.append(
                        EngineTime(
                            model, engine, batch, num_ranks, num_ranks, NBYTES[model], 0.0, late, late, late, True
                        )
                    )
    return EngineTimes(tuple(rows), core_factor=1.75, foreign_busy=0.03125, link=LINK if ranks else "")
