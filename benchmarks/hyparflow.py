"""Images per second of ResNet-110-v2 and ResNet-1001-v2 (3,339 Keras layers), on one process and on several.

Every variant processes the same images per step: one process with Keras alone; copies of the model on two and four
ranks, beside DistributedDataParallel; the model in two stages; two copies of the model in two stages, on four ranks.
Times on 128 nodes are modelled: the simulator's time of the step, with the stages' costs measured here and links of 100
Gbit/s between nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
import torch.distributed as dist
from claim import Found, Options, measured_and_told, option, run_claim
from libraries import job
from ranks import serve_all
from torch.nn.parallel import DistributedDataParallel

import hocket as hk
from hocket import train
from hocket.keras import graph_of_keras
from hocket.keras.update import KerasUpdate
from hocket.keras.zoo import resnet_v2
from hocket.measure import Comparison, Contender, Measurement, Row, computed, pin
from hocket.measure.loops import Call, looped, nothing
from hocket.pipeline import add_gradient_sync, simulate
from hocket.sim import Hosts, Link

NUM_RANKS = 4
ALONE, OF_KERAS, OF_TORCH = "1 process", "Keras alone", "DistributedDataParallel over gloo, 2 ranks"
# Ranks, how they are used, and what is compared with it; the same images a step.
WAYS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    ALONE: (1, {"strategy": "data"}, (OF_KERAS,)),
    "data, 2 ranks": (2, {"strategy": "data"}, (ALONE, OF_TORCH)),
    "model, 2 ranks, 1f1b": (
        2, {"strategy": "model", "schedule": "1f1b", "num_micro_batches": 4}, (ALONE, "data, 2 ranks")
    ),
    # Two are enough for it to have no bubbles on two ranks, and every one more costs autograd's time a node again.
    "model, 2 ranks, chimera": (
        2, {"strategy": "model", "schedule": "chimera", "num_micro_batches": 2}, (ALONE, "data, 2 ranks")
    ),
    "data, 4 ranks": (4, {"strategy": "data"}, (ALONE,)),
    "hybrid, 2 x 2 ranks, 1f1b": (
        4, {"strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 4}, (ALONE, "data, 4 ranks")
    ),
}  # fmt: skip
NODES = (1, 2, 8, 32, 128)
MODELLED = ("data, 2 ranks", "model, 2 ranks, 1f1b")  # that a node does
OUTER = Link(2e-6, 8 / 100e9)  # between nodes: 100 Gbit/s


class Size(NamedTuple):
    """Of a model, of a step, and of its images."""

    depth: int
    batch: int
    pixels: int


MODELS = {110: Size(110, 32, 32), 1001: Size(1001, 16, 16)}  # the deeper one's activations fill a machine's memory


def compiled(depth: int, pixels: int) -> keras.Model:
    keras.utils.clear_session()  # Layers are named by number, and ranks do not make equally many.
    keras.utils.set_random_seed(0)
    model = resnet_v2(depth, (pixels, pixels, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss)
    return model


def images(batch: int, pixels: int) -> tuple[Any, Any]:
    """What they show does not change the time."""
    values = np.random.default_rng(0)
    return values.random((batch, pixels, pixels, 3), np.float32), values.integers(10, size=batch)


def step_of_keras(size: Size) -> Call:
    model, (x, y) = compiled(size.depth, size.pixels), images(size.batch, size.pixels)
    return lambda: model.train_on_batch(x, y)


def step_of_torch(size: Size, group: Any) -> Call:
    model, data = compiled(size.depth, size.pixels), images(size.batch, size.pixels)
    x, y = (torch.from_numpy(each[dist.get_rank() :: 2].copy()) for each in data)
    # Running statistics stay where they are, as in the others' steps.
    wrapped = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(x, training=True), y)
        (loss + sum(model.losses)).backward()
        optimizer.step()

    return step


def step_of_hocket(comm: hk.Communicator, size: Size, options: dict[str, Any]) -> tuple[Call, train.TrainingSetup]:
    """The step that `hocket.keras.fit` takes, and its set-up."""
    model = compiled(size.depth, size.pixels)
    x, y = images(size.batch, size.pixels)
    source = train.source_of((x, (y, None)), comm, batch_size=size.batch, shuffle=False, seed=0, drop_last=False)
    request = train.SetupRequest(size.batch, balance="profile", **options)
    setup = train.choose_setup(request, graph_of_keras(model), source, comm)

    def loss(output: Any, target: Any) -> Any:
        return model._compile_loss(target[0], output, None)

    executor = train.PipelineExecutor(setup.schedule, setup.split, comm, loss)
    trainer = train.Trainer(executor, KerasUpdate(model.optimizer, model.trainable_variables, executor))
    (given,) = source.batches(0)
    return lambda: trainer.train_step(given), setup


def modelled(setup: train.TrainingSetup, size: Size, link: Link) -> dict[int, float]:
    """Seconds of a step on so many nodes, each of two ranks laid out so, sums of gradients over all nodes
    included: simulated."""
    table = setup.schedule
    parts = (2 // table.num_ranks) * table.num_micro_batches
    inputs = {setup.split.batch_inputs[0]: torch.from_numpy(images(size.batch // parts, size.pixels)[0])}
    stages = train.profile_stages(setup.split, inputs, repeats=2)
    found = {}
    for nodes in NODES:
        costs = train.costs_of_stages(stages, fabric=Hosts(link, OUTER, 2), num_replicas=nodes * 2 // table.num_ranks)
        found[nodes] = simulate(add_gradient_sync(table, costs=costs), costs).makespan_s
    return found


def serve_rank(_: str, *numbers: str) -> None:
    """One rank: training steps of a Keras model, by one process, and by two or four in every strategy.

    Rank 0 tells the seconds of a step on numbers of nodes, simulated from what the stages cost here.
    """
    size = Size(*map(int, numbers))
    torch.set_num_threads(1)
    comm = hk.init()
    dist.init_process_group("gloo")
    two = dist.new_group([0, 1])
    case = f"ResNet-{size.depth}-v2, {size.pixels} x {size.pixels} pixels, {size.batch} images"
    contenders, setups = [], {}
    for name, (num_ranks, options, _) in WAYS.items():
        call = nothing
        if comm.rank < num_ranks:
            step, setups[name] = step_of_hocket(comm.group(list(range(num_ranks))), size, options)
            step()
            call = looped(step)
        contenders.append(Contender(case, name, call))
    contenders.append(Contender(case, OF_KERAS, looped(step_of_keras(size)) if comm.rank < 1 else nothing))
    contenders.append(Contender(case, OF_TORCH, looped(step_of_torch(size, two)) if comm.rank < 2 else nothing))
    link = train.measure_link(comm)
    seconds = {name: modelled(setups[name], size, link) for name in MODELLED} if comm.rank == 0 else {}
    comm.barrier()
    pin(comm.rank % (os.cpu_count() or 1))
    serve_all(comm, contenders, seconds)


def parts(options: Options) -> Found:
    for depth in options.depth or MODELS:
        ranks = job("hocket", __file__, MODELS[depth], NUM_RANKS)
        timeouts = {"start_timeout_s": 900.0, "run_timeout_s": 600.0}
        measurement, seconds_of = measured_and_told([ranks], f"ResNet-{depth}-v2", options.settings, **timeouts)
        if not options.json:
            for key in measurement.iterations:
                seconds = median(measurement.times(*key))
                print(f"{key.case}, {key.name}: {int(key.case.split()[-2]) / seconds:.1f} images a second")
        yield rows_of(measurement, seconds_of), measurement


def rows_of(measurement: Measurement, seconds: dict[str, dict[str, float]]) -> Iterator[Comparison | Row]:
    """What was measured; and steps of as many images a node on many nodes, simulated."""
    (case,) = measurement.cases
    for name, (_, _, rivals) in WAYS.items():
        for other in rivals:
            yield Comparison(case, name, (other,), label=f"{case}: {name}", unit="ms")
    for name in MODELLED:
        modelled_ms = {int(nodes): 1e3 * each for nodes, each in seconds[name].items()}
        one_ms, here_ms = modelled_ms.pop(1), 1e3 * median(measurement.times(case, name))
        yield computed(f"{case}: {name}, MODELLED on 1 node", "measured", one_ms, here_ms, "ms")
        for nodes, ms in modelled_ms.items():
            label = f"{case} a node: {name}, MODELLED on {nodes} nodes, images a second"
            yield Row(label, "modelled 1 node", ms, one_ms, "ms", nodes * one_ms / ms, None, None, None)


if __name__ == "__main__":
    run_claim(
        "training steps of deep residual networks: data, model and hybrid, by the same number of images a step",
        parts,
        option("--depth", type=int, action="append", choices=tuple(MODELS), help="may be repeated"),
        unit="ms",
    )
