"""`hocket pipeline choose`: choose schedule, depth and micro-batch size for a model."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._links import Bandwidth, HostBandwidth, HostLatency, Latency, RanksPerHost, read_fabric
from hocket.cli._output import AsJson
from hocket.cli._sizes import read_size
from hocket.cli._tables import format_params, print_table
from hocket.cli._verbs import add_verb, optional
from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument
from hocket.suggestions import did_you_mean

if TYPE_CHECKING:
    from hocket.pipeline.model_costs import ModelCosts

_HEADINGS = (
    *("schedule", "parameters", "D", "W", "N", "B", "recomputes", "step", "model", "bubbles", "memory", "samples/s"),
)


def register_choose(pipeline: typer.Typer) -> None:
    """Add the verb to `hocket pipeline`."""
    add_verb(pipeline, choose)


def choose(
    num_ranks: Annotated[
        int, typer.Option("-n", "--num-ranks", metavar="P", help="Number of ranks, over all replicas.")
    ] = 8,
    batch_size: Annotated[int, typer.Option(metavar="SAMPLES", help="Samples per step.")] = 64,
    model: Annotated[Path | None, optional(metavar="FILE", help="JSON file with the fields of ModelCosts.")] = None,
    layers: Annotated[int, typer.Option(metavar="N", help="Number of equal layers, without --model.")] = 24,
    forward: Annotated[float, typer.Option(metavar="MS", help="Time of a layer's forward pass per sample.")] = 1.0,
    overhead: Annotated[
        float, typer.Option(metavar="MS", help="Fixed time of a layer's pass, for any number of samples.")
    ] = 0.0,
    weights: Annotated[str, typer.Option(metavar="SIZE", help="Weights of a layer, with the optimizer's state.")] = "0",
    gradients: Annotated[str, typer.Option(metavar="SIZE", help="Gradients of a layer.")] = "0",
    activation: Annotated[str, typer.Option(metavar="SIZE", help="Activations of a layer per sample.")] = "0",
    boundary: Annotated[str, typer.Option("--output", metavar="SIZE", help="Output of a layer per sample.")] = "0",
    limit: Annotated[str | None, optional(metavar="SIZE", help="Memory limit of a rank.")] = None,
    only: Annotated[
        list[str] | None,
        optional(metavar="SCHEDULE", help="Try only this schedule; may be repeated."),
    ] = None,
    best: Annotated[int, typer.Option(metavar="N", help="Number of results to show.")] = 10,
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    ranks_per_host: RanksPerHost = None,
    host_latency: HostLatency = 30.0,
    host_bandwidth: HostBandwidth = 12.5,
    as_json: AsJson = False,
) -> int:
    """Rank schedules, depths, replicas and micro-batch sizes for a model, by simulation.

    The model is a JSON file with the fields of hocket.pipeline.ModelCosts, or --layers equal layers. The column `model`
    is the formula of the Chimera paper. Nothing is measured.

    Examples:
      hocket pipeline choose -n 32 --batch-size 128 --layers 48 --forward 1 --overhead 0.2 --weights 448MiB \\
          --gradients 56MiB --activation 30MiB --output 4MiB --limit 24GiB --ranks-per-host 8 --bandwidth 100
      hocket pipeline choose -n 8 --batch-size 32 --model model.json --only 1f1b --only chimera --json
    """
    from hocket.measure.progress_bar import progress
    from hocket.pipeline.choosing import choose as rank_all
    from hocket.pipeline.model_costs import ModelCosts

    if model is not None:
        costs = _read_model(model)
    else:
        costs = ModelCosts(
            layers,
            forward * 1e-3,
            overhead_s=overhead * 1e-3,
            weight_nbytes=read_size(weights),
            gradient_nbytes=read_size(gradients),
            activation_nbytes=read_size(activation),
            output_nbytes=read_size(boundary),
        )
    fabric = read_fabric(latency, bandwidth, float("inf"), ranks_per_host, host_latency, host_bandwidth)
    with progress("choose", "plans") as show_progress:

        def report(done: int, total: int) -> None:
            show_progress(done, total, "simulating")

        found = rank_all(
            costs,
            num_ranks,
            batch_size,
            limit_nbytes=None if limit is None else read_size(limit),
            fabric=fabric,
            names=only or None,
            num_best=best,
            report=report,
        )
    if as_json:
        print(json.dumps({"simulated": [asdict(each) | {"samples_per_s": each.samples_per_s} for each in found]}))
        return 0
    rows = [
        [
            each.name,
            format_params(each.parameters),
            *(str(number) for number in (each.num_ranks, each.num_replicas, each.num_micro_batches)),
            str(each.micro_batch_size),
            "yes" if each.recomputes else "",
            format_seconds(each.step_s),
            format_seconds(each.model_s),
            f"{each.bubble:.1%}",
            format_nbytes(round(each.peak_nbytes)),
            f"{each.samples_per_s:.4g}",
        ]
        for each in found
    ]
    print_table(f"{num_ranks} ranks, {batch_size} samples a step, simulated", _HEADINGS, rows)
    return 0


def _read_model(path: Path) -> ModelCosts:
    from hocket.pipeline.model_costs import ModelCosts

    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict):
        raise InvalidArgument(
            f"{path}: a model must be a JSON object with the fields of ModelCosts, not {type(content).__name__}"
        )
    known = [each.name for each in fields(ModelCosts)]
    wrong = next((name for name in content if name not in known), None)
    if wrong is not None:
        raise InvalidArgument(
            f"{path}: unknown field {wrong!r}; a model has {', '.join(known)} (hocket.pipeline.ModelCosts)"
            f"{did_you_mean(wrong, known)}"
        )
    try:
        return ModelCosts(**content)
    except TypeError as error:
        raise InvalidArgument(f"{path}: {str(error).replace('ModelCosts.__init__() ', '')}") from None
