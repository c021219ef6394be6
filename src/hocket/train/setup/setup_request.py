"""A request for a training set-up, before anything is measured or chosen."""

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
    """A user's request for a training set-up; None leaves a choice open.

    Args:
        batch_size: samples of a step, over all replicas.
        strategy: see `arrange`; "auto": measure the layers and choose the set-up by simulation.
        num_partitions, num_replicas: see `arrange`.
        schedule, schedule_options, num_micro_batches, recompute: see `make_schedule`; the schedule of one replica.
        layers_per_partition: number of layers of each stage.
        balance: cost that is equalised between stages: "params", "flops", "profile" (measured time), or a number for
            each layer; "auto": "profile" with several stages and indexable data, otherwise "params".
        limit_nbytes: for "auto": limit of a rank's weights, gradients and activations, in bytes.

    Examples:
        >>> request = hk.train.SetupRequest(batch_size=32, strategy="hybrid", num_partitions=2)
        >>> arrangement = request.arrangement(num_ranks=6)
        >>> arrangement, request.schedule_for(arrangement).num_micro_batches
        (Arrangement(num_partitions=2, num_replicas=3), 8)
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
        """Check the arguments that can be checked without ranks, model or data.

        Raises:
            InvalidArgument: a name is unknown, or arguments contradict each other.
        """
        if isinstance(self.balance, str) and self.balance not in (*BALANCES, "profile", "auto"):
            raise InvalidArgument(f"balance must be {', '.join(BALANCES)}, profile or auto, not {self.balance!r}")
        if self.is_to_choose and (isinstance(self.schedule, PipelineSchedule) or self.layers_per_partition is not None):
            raise InvalidArgument(
                'strategy "auto" chooses schedule and cuts: leave out schedule tables and layers_per_partition, or '
                "choose another strategy"
            )

    @property
    def is_to_choose(self) -> bool:
        """Whether `choose_setup` chooses partitions, replicas and schedule by measurement."""
        return self.strategy == "auto"

    def arrangement(self, num_ranks: int) -> Arrangement:
        """Return the partitions and replicas of a request whose strategy is not "auto".

        A schedule table determines the number of partitions. Raises the errors of `arrange`.
        """
        num_partitions = self.num_partitions
        if isinstance(self.schedule, PipelineSchedule) and num_partitions is None:
            num_partitions = self.schedule.num_ranks
        return arrange(self.strategy, num_ranks, num_partitions, self.num_replicas)

    def schedule_for(self, arrangement: Arrangement) -> PipelineSchedule:
        """Return the schedule of one replica. Raises the errors of `make_schedule`."""
        return make_schedule(
            arrangement,
            self.batch_size,
            schedule=self.schedule or "1f1b",
            options=self.schedule_options,
            num_micro_batches=self.num_micro_batches,
            recompute=self.recompute,
        )
