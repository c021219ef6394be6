"""The numbers of partitions and replicas of a model."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.errors import InvalidArgument

STRATEGIES = ("data", "model", "hybrid")


@dataclass(frozen=True)
class Arrangement:
    """The numbers of partitions and replicas of a model.

    Args:
        num_partitions: number of ranks that share one model.
        num_replicas: number of copies of the cut model; each copy has its own ranks.

    Examples:
        >>> hk.train.Arrangement(num_partitions=2, num_replicas=3).num_ranks
        6
    """

    num_partitions: int
    num_replicas: int

    @property
    def num_ranks(self) -> int:
        return self.num_partitions * self.num_replicas


def arrange(
    strategy: str, num_ranks: int, num_partitions: int | None = None, num_replicas: int | None = None
) -> Arrangement:
    """Return the numbers of partitions and replicas for a strategy; derive those that are not given.

    Args:
        strategy: "data": replicas of the whole model; "model": one model cut over all ranks; "hybrid": replicas of a
            cut model.
        num_ranks: number of ranks of the job.
        num_partitions, num_replicas: None: derived from the strategy and the other number.

    Raises:
        InvalidArgument: the arguments contradict each other; the message says what would be right.

    Examples:
        >>> hk.train.arrange("hybrid", num_ranks=6, num_partitions=2)
        Arrangement(num_partitions=2, num_replicas=3)
    """
    if strategy not in STRATEGIES:
        raise InvalidArgument(f"strategy must be {', '.join(STRATEGIES)} or auto, not {strategy!r}")
    for name, value in (("num_partitions", num_partitions), ("num_replicas", num_replicas)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgument(f"{name} must be an int of 1 or more, not {value!r}")
    if strategy == "data" and num_partitions not in (None, 1):
        raise InvalidArgument(f'strategy "data" has whole models: num_partitions must be 1, not {num_partitions}')
    if strategy == "model" and num_replicas not in (None, 1):
        raise InvalidArgument(f'strategy "model" has one model: num_replicas must be 1, not {num_replicas}')
    if strategy == "data":
        num_partitions = 1
    elif strategy == "model":
        num_replicas = 1
    if num_partitions is None and num_replicas is None:
        raise InvalidArgument(f'strategy "{strategy}" needs num_partitions or num_replicas')
    # At least 1 even with too few ranks, so that the error below has sensible numbers.
    partitions = num_partitions or max(1, num_ranks // (num_replicas or 1))
    replicas = num_replicas or max(1, num_ranks // partitions)
    if partitions * replicas != num_ranks:
        raise InvalidArgument(
            f"{partitions} partitions x {replicas} replicas need {partitions * replicas} ranks; the job has "
            f"{num_ranks}: start with hocket run -n {partitions * replicas}, or choose other numbers"
        )
    return Arrangement(partitions, replicas)
