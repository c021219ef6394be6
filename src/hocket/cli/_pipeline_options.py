"""Options of `hocket pipeline` for the schedule and the costs of its actions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli._completions import pipelines
from hocket.cli._links import check_link
from hocket.cli._verbs import argument, optional
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.pipeline import CostModel, PipelineSchedule

Name = Annotated[
    str,
    argument(metavar="SCHEDULE", help="A name from `list`, or a .txt, .json or .csv file.", autocompletion=pipelines),
]
Names = Annotated[
    list[str],
    argument(metavar="SCHEDULE...", help="Names from `list`, or .txt, .json or .csv files.", autocompletion=pipelines),
]
NumRanks = Annotated[
    int, typer.Option("-n", "--num-ranks", metavar="D", help="Number of ranks, for schedules by name.")
]
NumMicroBatches = Annotated[
    int, typer.Option("-m", "--micro-batches", metavar="N", help="Number of micro-batches, for schedules by name.")
]
Params = Annotated[
    list[str] | None,
    optional("--param", metavar="NAME=VALUE", help="Parameter of a schedule by name; may be repeated."),
]
Costs = Annotated[
    list[str] | None,
    optional(
        "--cost",
        metavar="KIND=MS",
        help="Time of a micro-batch in a rank's share of the model, in milliseconds (smaller stages cost less), or one "
        "time per stage, separated by commas. Default: F=1, B=2, I=1, W=1.",
    ),
]
MessageSize = Annotated[
    str | None,
    optional("--message", metavar="SIZE", help="Output of a stage. Default: messages take no time."),
]
Activation = Annotated[
    str | None,
    optional("--activation", metavar="SIZE", help="Memory that a rank keeps per micro-batch. Default: 1 B."),
]
Weights = Annotated[
    str | None,
    optional(
        "--weights",
        metavar="SIZE",
        help="Memory of a rank's share of the model, with gradients and the optimizer's state.",
    ),
]
Gradients = Annotated[
    str | None,
    optional("--gradients", metavar="SIZE", help="Gradients of a rank's share, summed over copies."),
]
Replicas = Annotated[int, typer.Option("--replicas", metavar="W", help="Copies of the whole pipeline.")]
Sync = Annotated[
    str | None,
    optional("--sync", metavar="MODE", help="When gradients are summed: lazy, eager or eager-opt."),
]
BufferingText = Annotated[
    str,
    typer.Option(
        metavar="BUFFERS", help="Message buffers: tagged, fifo, tagged:2, fifo:1 (number of slots) or rendezvous."
    ),
]


@dataclass(frozen=True)
class CostOptions:
    """Costs from the options, for any schedule.

    Args:
        seconds: time by kind; a single number is for a rank's share of the model, a list has one time per stage.
        message, activation, weights, gradients: bytes; None: not given.
        latency_us, bandwidth_gb_s: latency and bandwidth of the links.
        num_replicas: copies of the pipeline.
    """

    seconds: Mapping[str, float | list[float]]
    message: int | None
    activation: int | None
    weights: int | None
    gradients: int | None
    latency_us: float
    bandwidth_gb_s: float
    num_replicas: int

    def of(self, schedule: PipelineSchedule) -> CostModel:
        """Return the costs of a schedule's stages."""
        from hocket.pipeline import CostModel
        from hocket.sim import Link

        share = schedule.num_ranks / schedule.num_stages
        has_link = self.message is not None or self.gradients is not None
        return CostModel(
            seconds={name: value if isinstance(value, list) else value * share for name, value in self.seconds.items()},
            fabric=Link.of(self.latency_us, self.bandwidth_gb_s) if has_link else None,
            message_nbytes=self.message or 0,
            stash_nbytes={
                "activation": share * (1.0 if self.activation is None else self.activation),
                "input": self.message or 0,
            },
            weight_nbytes=share * (self.weights or 0),
            gradient_nbytes=share * (self.gradients or 0),
            num_replicas=self.num_replicas,
        )


def read_costs(
    cost: list[str] | None,
    message: str | None,
    activation: str | None,
    weights: str | None,
    gradients: str | None,
    latency_us: float,
    bandwidth_gb_s: float,
    num_replicas: int,
) -> CostOptions:
    """Return the costs that the options give."""
    from hocket.cli._sizes import read_size
    from hocket.pipeline.costs import UNIT_SECONDS
    from hocket.pipeline.kind import kinds

    check_link(latency_us, bandwidth_gb_s)
    names = sorted({kind.cost for kind in kinds().values() if kind.cost})
    seconds: dict[str, float | list[float]] = {name: 1e-3 * value for name, value in UNIT_SECONDS.items()}
    for text in cost or ():
        match = re.fullmatch(r"([A-Z_]+)=([0-9.,e-]+)", text)
        try:
            values = [1e-3 * float(each) for each in match[2].split(",")] if match else []
        except ValueError:
            values = []
        if match is None or not values:
            raise InvalidArgument(f"{text!r} is not a cost; write, for example, B=2 or F=1,1,1.5,1, in milliseconds")
        if match[1] not in names:
            raise InvalidArgument(f"unknown cost {match[1]!r}; known are {', '.join(names)}")
        if not all(value >= 0 for value in values):
            raise InvalidArgument(f"{text!r}: a cost must be 0 ms or more")
        seconds[match[1]] = values if len(values) > 1 else values[0]
    given = {text.partition("=")[0] for text in cost or ()}
    for kind in kinds().values():
        if kind.cost in seconds and kind.cost not in given and not given.isdisjoint(kind.instead):
            del seconds[kind.cost]  # then it is the sum of its parts

    def size(text: str | None) -> int | None:
        return None if text is None else read_size(text)

    return CostOptions(
        seconds,
        size(message),
        size(activation),
        size(weights),
        size(gradients),
        latency_us,
        bandwidth_gb_s,
        num_replicas,
    )


def read_schedule(name: str, num_ranks: int, num_micro_batches: int, param: list[str] | None) -> PipelineSchedule:
    """Return a schedule by its name or from a file."""
    from hocket.pipeline import build, load_schedule
    from hocket.pipeline.files import forms

    if Path(name).suffix in forms() or "/" in name:
        return load_schedule(name)
    return build(name, num_ranks, num_micro_batches, **read_params(param))


def read_params(param: list[str] | None) -> dict[str, Any]:
    """Return the parameters of a schedule as a dict."""
    given: dict[str, Any] = {}
    for text in param or ():
        match = re.fullmatch(r"(\w+)=([\w-]+)", text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not a parameter; write, for example, num_pairs=2")
        given[match[1]] = int(match[2]) if match[2].isdecimal() else match[2]
    return given
