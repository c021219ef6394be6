"""Train with packed messages between hosts and without, and compare everything bit for bit."""

from __future__ import annotations

import numpy as np
import torch

import hocket as hk

LAYERS = [2, 3]


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(1152, 4),
    )


def trained(comm: hk.Communicator, messages: str | None, schedule: str, **options: object) -> tuple[list[float], str]:
    """Return the losses of all batches, the hash of all weights, and what is said of messages."""
    random = np.random.default_rng(0)
    data = (random.standard_normal((70, 1, 16, 16), np.float32), random.integers(0, 4, 70))
    split = model()
    history = hk.train.fit(
        split, data, loss=torch.nn.functional.cross_entropy, validation_data=data, epochs=2, batch_size=32,
        optimizer=torch.optim.Adam(split.parameters()), schedule=schedule, comm=comm, show_progress=False,
        messages=messages, **options,
    )  # fmt: skip
    weights = [each.detach().numpy().tobytes() for each in split.parameters()]
    return [*history.batch_losses, *history.history["val_loss"], hash(b"".join(weights))], history.messages


def refusal(comm: hk.Communicator) -> str:
    """Return the error of ranks that do not agree."""
    try:
        trained(comm, "lossless" if comm.rank else None, "1f1b")
    except hk.errors.InvalidArgument as error:
        return str(error)
    return "nothing was refused"


def main() -> None:
    """Print a line on rank 0 when all is equal."""
    torch.set_num_threads(1)
    with hk.init() as comm:
        cases = [("1f1b", {"layers_per_partition": LAYERS}), ("gpipe", {"recompute": True})]
        if comm.size == 4:
            cases = [("chimera", {}), ("zb-h1", {}), ("1f1b", {"strategy": "hybrid", "num_partitions": 2})]
        for schedule, options in cases:
            plain, _ = trained(comm, None, schedule, **options)
            packed, said = trained(comm, "lossless", schedule, **options)
            assert packed == plain, schedule
            crosses = "strategy" not in options  # replicas are on one host each
            assert ("without loss" in said) == crosses, (schedule, said)
        said = refusal(comm)
        assert "messages" in said and "lossless" in said, said
        if comm.rank == 0:
            print("all is equal")


if __name__ == "__main__":
    main()
