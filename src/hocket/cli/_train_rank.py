"""One rank of `hocket train`: ``python -m hocket.cli._train_rank OPTIONS``, with the options as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hocket.cli._train_inputs import begin, is_keras, load_data, load_loss, load_model, save_model
from hocket.cli.train import setup_options_of
from hocket.session import init


def main(options: dict[str, Any]) -> None:
    """Train, and write the outcome."""
    begin(options["seed"])
    model = load_model(options["model"])
    data, validation = load_data(options["data"])
    common = {
        **setup_options_of(options),
        "epochs": options["epochs"],
        "max_steps": options["steps"],
        "validation_data": validation,
        "engine": options["engine"],
        "engine_options": options["engine_options"],
        "exact": options["exact"],
        "seed": options["seed"],
        "picture": options["picture"],
    }
    with init(timeout=options["timeout"]) as comm:
        if is_keras(model):
            from hocket.keras import fit as fit_keras
            from hocket.keras.compiled import compile_by_name

            compile_by_name(model, options["loss"], options["optimizer"], options["learning_rate"])
            history: Any = fit_keras(model, data, comm=comm, **common)
        else:
            from hocket.train import fit
            from hocket.train.loop.by_name import optimizer_by_name

            history = fit(
                model,
                data,
                loss=load_loss(options["loss"]),
                optimizer=optimizer_by_name(options["optimizer"], options["learning_rate"]),
                comm=comm,
                **common,
            )
        if comm.rank == 0:
            if options["save"]:
                save_model(model, Path(options["save"]))
            outcome = {"plan": history.plan, "epochs": list(history.epoch), "history": history.history}
            if is_keras(model):
                outcome["left_to_keras"] = history.left_to_keras
            Path(options["output"]).write_text(json.dumps(outcome, default=lambda array: array.tolist()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
