"""What a user wants of a training set-up, before anything is measured or chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.errors import InvalidArgument
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.setup.arrangement import Arrangement, arrange
from hocket.train.setup.balance import BALANCES
from hocket.train.setup.schedule import make_schedule


@dataclass(frozen=True)
class SetupRequest:
    """What a user wants of a set-up; None where it is left open.

    Args:
        strategy, num_partitions, num_replicas: as of `arrange`; "auto": chosen.
        schedule, schedule_options, num_micro_batches, recompute: of a replica.
        batch_size: samples of a step, over all replicas.
        layers_per_partition: how many layers each stage has.
        balance: what is equalised between stages: "params", "flops", "profile", or a number for every layer; "auto":
            "profile" where there are several stages and indexable data, otherwise "params".
        limit_nbytes: that a rank may hold of weights, gradients and activations, where the strategy is chosen.
    """

    batch_size: int
    strategy: str = "model"
    num_partitions: int | None = None
    num_replicas: int | None = None
    schedule: str | PipelineSchedule | None = None
    schedule_options: Mapping[str, Any] | None = None
    num_micro_batches: int | None = None
    recompute: bool = False
    layers_per_partition: Sequence[int] | None = None
    balance: str | Sequence[float] = "params"
    limit_nbytes: float | None = None

    def check(self) -> None:
        """Check what needs no ranks, model or data to be checked.

        Raises:
            InvalidArgument: a name is unknown, or arguments contradict each other.
        """
        if isinstance(self.balance, str) and self.balance not in (*BALANCES, "profile", "auto"):
            raise InvalidArgument(f"balance is {', '.join(BALANCES)}, profile or auto, not {self.balance!r}")
        if self.is_to_choose and (isinstance(self.schedule, PipelineSchedule) or self.layers_per_partition is not None):
            raise InvalidArgument('strategy "auto" chooses schedule and cuts: leave them out, or choose a strategy')

    @property
    def is_to_choose(self) -> bool:
        """Whether partitions, replicas and schedule are left to `choose_setup`, which measures."""
        return self.strategy == "auto"

    def arrangement(self, num_ranks: int) -> Arrangement:
        """Return partitions and replicas of a request that leaves neither to `choose_setup`; a table of actions says
        how many partitions there are. Raises as `arrange`."""
        num_partitions = self.num_partitions
        if isinstance(self.schedule, PipelineSchedule) and num_partitions is None:
            num_partitions = self.schedule.num_ranks
        return arrange(self.strategy, num_ranks, num_partitions, self.num_replicas)

    def schedule_for(self, arrangement: Arrangement) -> PipelineSchedule:
        """Return the table of one replica. Raises as `make_schedule`."""
        return make_schedule(
            arrangement,
            self.batch_size,
            schedule=self.schedule or "1f1b",
            options=self.schedule_options,
            num_micro_batches=self.num_micro_batches,
            recompute=self.recompute,
        )
