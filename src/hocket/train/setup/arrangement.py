"""How many partitions a model is cut into, and how many replicas of it there are."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.errors import InvalidArgument

STRATEGIES = ("data", "model", "hybrid")


@dataclass(frozen=True)
class Arrangement:
    """What ranks do.

    Args:
        num_partitions: ranks that a model is cut over.
        num_replicas: of the cut model, each on ranks of its own.
    """

    num_partitions: int
    num_replicas: int

    @property
    def num_ranks(self) -> int:
        return self.num_partitions * self.num_replicas


def arrange(
    strategy: str, num_ranks: int, num_partitions: int | None = None, num_replicas: int | None = None
) -> Arrangement:
    """Settle partitions and replicas for a strategy, on so many ranks; what is not given follows from the rest.

    Args:
        strategy: "data": replicas of the whole model; "model": one model cut over all ranks; "hybrid": replicas of a
            cut model.
        num_ranks: of the job.
        num_partitions, num_replicas: as wanted.

    Raises:
        InvalidArgument: they contradict each other; says what would do.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgument(f"a strategy is {', '.join(STRATEGIES)} or auto, not {strategy!r}")
    for name, value in (("num_partitions", num_partitions), ("num_replicas", num_replicas)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgument(f"{name} is 1 or more, not {value!r}")
    if strategy == "data" and num_partitions not in (None, 1):
        raise InvalidArgument(f'strategy "data" has whole models: num_partitions is 1, not {num_partitions}')
    if strategy == "model" and num_replicas not in (None, 1):
        raise InvalidArgument(f'strategy "model" has one model: num_replicas is 1, not {num_replicas}')
    if strategy == "data":
        num_partitions = 1
    elif strategy == "model":
        num_replicas = 1
    if num_partitions is None and num_replicas is None:
        raise InvalidArgument(f'strategy "{strategy}" needs num_partitions or num_replicas')
    # What is not given is 1 at least, also where there are too few ranks.
    partitions = num_partitions or max(1, num_ranks // (num_replicas or 1))
    replicas = num_replicas or max(1, num_ranks // partitions)
    if partitions * replicas != num_ranks:
        raise InvalidArgument(
            f"{partitions} partitions x {replicas} replicas are {partitions * replicas} ranks, and there are "
            f"{num_ranks}: start as many (hocket run -n {partitions * replicas}), or choose other numbers"
        )
    return Arrangement(partitions, replicas)
