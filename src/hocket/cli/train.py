"""`hocket train`: train a model split over ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli._output import AsJson, json_text
from hocket.cli._rank_job import result_of_ranks
from hocket.cli._sizes import read_counts
from hocket.cli._verbs import add_verb, optional
from hocket.errors import InvalidArgument
from hocket.measure.pictures import check_picture_path
from hocket.measure.progress_bar import waiting

# Defaults of options that a compiled model brings itself.
_DEFAULTS_IF_NOT_COMPILED: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adam", "learning_rate": 1e-3}


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    add_verb(application, train)


def train(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Model: resnet20-v2, FILE.py:FUNCTION or MODULE:FUNCTION.")
    ],
    data: Annotated[
        str, typer.Option(metavar="NAME", help="Data: mnist, random, FILE.py:FUNCTION or MODULE:FUNCTION.")
    ] = "mnist",
    num_ranks: Annotated[int, typer.Option("-n", "--num-ranks", metavar="N", help="Number of ranks to start.")] = 2,
    strategy: Annotated[str, typer.Option(metavar="S", help="How to split: data, model, hybrid or auto.")] = "model",
    partitions: Annotated[int | None, optional(metavar="N", help="Ranks per copy of the model.")] = None,
    replicas: Annotated[int | None, optional(metavar="N", help="Copies of the model.")] = None,
    schedule: Annotated[
        str | None,
        optional(metavar="NAME", help="A name from hocket pipeline list. Default: 1f1b."),
    ] = None,
    micro_batches: Annotated[
        int | None,
        optional("-m", "--micro-batches", metavar="N", help="Micro-batches per replica and step."),
    ] = None,
    layers_per_partition: Annotated[str | None, optional(metavar="A,B", help="Number of layers of each stage.")] = None,
    balance: Annotated[
        str,
        typer.Option(
            metavar="B",
            help="What is equalised between stages: params, flops or profile (time). auto: profile if possible.",
        ),
    ] = "auto",
    batch_size: Annotated[int, typer.Option(metavar="N", help="Samples per step, over all replicas.")] = 32,
    epochs: Annotated[int, typer.Option(metavar="N", help="Number of passes over the training data.")] = 1,
    steps: Annotated[int | None, optional(metavar="N", help="Stop after N steps.")] = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="Loss: cross_entropy, mse, l1, or, for torch models, FILE.py:FUNCTION.")
    ] = (_DEFAULTS_IF_NOT_COMPILED["loss"]),
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="Optimizer: sgd, adam or adamw.")
    ] = _DEFAULTS_IF_NOT_COMPILED["optimizer"],
    learning_rate: Annotated[
        float, typer.Option("--lr", "--learning-rate", metavar="R", help="Learning rate of the optimizer.")
    ] = _DEFAULTS_IF_NOT_COMPILED["learning_rate"],
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="How copies sum gradients: mix, ring, 'fused cycle_ms=5', ... (see Engines)."
        ),
    ] = "mix",
    gradients: Annotated[
        str | None,
        optional(metavar="TEXT", help="How copies compress gradients: 'ok-topk(density=0.01)', 'qsgd', ..."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Make gradients bit-identical to those of one process.")
    ] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="Repeat forward passes to use less memory.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random numbers and the order of samples.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that a rank waits for another rank.")] = 600.0,
    save: Annotated[Path | None, optional(metavar="PATH", help="Save the trained model here.")] = None,
    picture: Annotated[Path | None, optional(metavar="PATH", help="Draw a step, simulated and measured, here.")] = None,
    as_json: AsJson = False,
) -> int:
    """Train a torch module or an unchanged Keras model on several ranks of this host: as replicas, split into stages,
    or both.

    All input is checked before ranks start. Every rank loads the model and the data by the names given here.

    Examples:
      hocket train --model resnet20-v2 --data mnist --strategy model -n 2
      hocket train --model mine.py:make_model --data mine.py:load --strategy hybrid --partitions 2 -n 4
      hocket train --model resnet110-v2 --data mnist --strategy auto -n 2 --picture step.png
      hocket train --model mine.py:make_model --data mine.py:load -n 2 --schedule zb-v --save out.pt
    """
    if picture is not None:
        check_picture_path(picture)
    for name, number in (("-n", num_ranks), ("--epochs", epochs), ("--steps", steps), ("--batch-size", batch_size)):
        if number is not None and number < 1:
            raise InvalidArgument(f"{name} must be 1 or more, not {number}")
    for name, value in (("--lr", learning_rate), ("--timeout", timeout)):
        if not 0 < value < float("inf"):
            raise InvalidArgument(f"{name} must be a number above zero, not {value}")
    layers = None if layers_per_partition is None else read_counts(layers_per_partition, "--layers-per-partition")
    options: dict[str, Any] = {
        "model": model, "data": data, "strategy": strategy, "partitions": partitions, "replicas": replicas,
        "schedule": schedule, "micro_batches": micro_batches, "layers": layers,
        "balance": balance, "batch_size": batch_size, "epochs": epochs, "steps": steps, "loss": loss,
        "optimizer": optimizer, "learning_rate": learning_rate, "engine": engine, "gradients": gradients,
        "exact": exact, "recompute": recompute, "seed": seed, "timeout": timeout,
        "save": str(save.absolute()) if save else None,
        "picture": str(picture.absolute()) if picture else None,
    }  # fmt: skip
    from hocket.observe.training_file import HEAD

    with waiting("loading the model and the data"):
        _check(options, num_ranks, save)
    print(f"hocket train: starting {num_ranks} ranks; each loads the model and the data", file=sys.stderr, flush=True)
    exit_code, found = result_of_ranks("_train_rank", options, num_ranks, "hocket train")
    if exit_code == 0:
        print(json_text({HEAD.key: HEAD.text, **found}) if as_json else _summary(found))
    return exit_code


def _check(options: dict[str, Any], num_ranks: int, save: Path | None) -> None:
    """Load the model and the data and check the set-up, so that bad input is found before ranks start."""
    from hocket.cli._engine_names import read_engine
    from hocket.cli._engine_values import check_values
    from hocket.cli._train_inputs import check_save_path, is_keras, load_data, load_loss, load_model
    from hocket.train import EngineChoice, SetupRequest, check_request, graph_of
    from hocket.train.checks import check_seed
    from hocket.train.data.batches import samples_of
    from hocket.train.loop.by_name import optimizer_by_name

    check_seed(options["seed"])
    choice = read_engine(options["engine"])
    choice = EngineChoice.of(choice.name, choice.options, options.pop("gradients"))
    choice.check(exact=options["exact"])
    check_values(choice)
    options["engine"], options["engine_options"] = choice.name, dict(choice.options)
    model = load_model(options["model"])
    if save is not None:
        check_save_path(model, save)
    sets: tuple[Any, ...] = load_data(options["data"])
    if is_keras(model):
        from hocket.keras import graph_of_keras
        from hocket.keras.compiled import compile_by_name
        from hocket.keras.feeding import data_of

        sets = tuple(data if data is None else data_of(data) for data in sets)
        if model.compiled and any(options[name] != value for name, value in _DEFAULTS_IF_NOT_COMPILED.items()):
            raise InvalidArgument(
                f"{options['model']} is compiled with a loss and an optimizer: leave out --loss, --optimizer and --lr"
            )
        compile_by_name(model, options["loss"], options["optimizer"], options["learning_rate"])
        graph = graph_of_keras(model)
    else:
        load_loss(options["loss"])
        optimizer_by_name(options["optimizer"], options["learning_rate"])
        graph = graph_of(model)
    for data in sets:
        if data is not None:
            samples_of(data, batch_size=options["batch_size"], shuffle=False, seed=0, drop_last=False)
    check_request(SetupRequest(**setup_options_of(options)), graph, num_ranks)


def setup_options_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `hocket.train.SetupRequest`."""
    return {
        "batch_size": options["batch_size"],
        "strategy": options["strategy"],
        "num_partitions": options["partitions"],
        "num_replicas": options["replicas"],
        "schedule": options["schedule"],
        "num_micro_batches": options["micro_batches"],
        "recompute": options["recompute"],
        "layers_per_partition": options["layers"],
        "balance": options["balance"],
    }


def _summary(outcome: dict[str, Any]) -> str:
    lines = [outcome["plan"]]
    for number, epoch in enumerate(outcome["epochs"]):
        words = ", ".join(f"{name} {_number(values[number])}" for name, values in outcome["history"].items())
        lines.append(f"epoch {epoch + 1}: {words}")
    left = outcome.get("left_to_keras", {})
    if left:
        name, reason = next(iter(left.items()))
        lines.append(f"{len(left)} operations run by Keras at every step; the first, {name!r}: {reason}")
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"[{', '.join(map(_number, value))}]" if isinstance(value, list) else f"{value:.4g}"
