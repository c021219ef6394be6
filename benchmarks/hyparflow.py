"""Images per second of ResNet-110-v2 and ResNet-1001-v2 (3,339 Keras layers), on one and several processes.

Every variant processes the same images per step:

- one process, with hocket and with Keras alone;
- copies of the model on two and four ranks, compared with DistributedDataParallel on two;
- the model in two stages, on two ranks;
- two copies of the model in two stages, on four ranks.

Times on up to 128 nodes are modelled: the simulator computes the time of a step from the measured costs of the stages,
with links of 100 Gbit/s between nodes.
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
from claim import Options, PartResults, measure_with_facts, option, run_claim
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
# Number of ranks, options of the training, and rivals; all have the same images per step.
WAYS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    ALONE: (1, {"strategy": "data"}, (OF_KERAS,)),
    "data, 2 ranks": (2, {"strategy": "data"}, (ALONE, OF_TORCH)),
    "model, 2 ranks, 1f1b": (
        2, {"strategy": "model", "schedule": "1f1b", "num_micro_batches": 4}, (ALONE, "data, 2 ranks")
    ),
    # Two micro-batches are enough to avoid bubbles on two ranks; each further one adds autograd's time per node.
    "model, 2 ranks, chimera": (
        2, {"strategy": "model", "schedule": "chimera", "num_micro_batches": 2}, (ALONE, "data, 2 ranks")
    ),
    "data, 4 ranks": (4, {"strategy": "data"}, (ALONE,)),
    "hybrid, 2 x 2 ranks, 1f1b": (
        4, {"strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 4}, (ALONE, "data, 4 ranks")
    ),
}  # fmt: skip
NODES = (1, 2, 8, 32, 128)
MODELLED = ("data, 2 ranks", "model, 2 ranks, 1f1b")  # variants that run on the two ranks of each node
OUTER = Link(2e-6, 8 / 100e9)  # between nodes: 100 Gbit/s


class Size(NamedTuple):
    """The depth of a model, the images per step, and the width and height of an image in pixels."""

    depth: int
    batch: int
    pixels: int


MODELS = {110: Size(110, 32, 32), 1001: Size(1001, 16, 16)}  # activations of the deeper one fill the memory


def compile_model(depth: int, pixels: int) -> keras.Model:
    keras.utils.clear_session()  # layers are named by number, and ranks do not make equally many
    keras.utils.set_random_seed(0)
    model = resnet_v2(depth, (pixels, pixels, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss)
    return model


def make_images(batch: int, pixels: int) -> tuple[Any, Any]:
    """Return random images and labels; their values do not affect the time."""
    values = np.random.default_rng(0)
    return values.random((batch, pixels, pixels, 3), np.float32), values.integers(10, size=batch)


def step_of_keras(size: Size) -> Call:
    model, (x, y) = compile_model(size.depth, size.pixels), make_images(size.batch, size.pixels)
    return lambda: model.train_on_batch(x, y)


def step_of_torch(size: Size, group: Any) -> Call:
    model, data = compile_model(size.depth, size.pixels), make_images(size.batch, size.pixels)
    x, y = (torch.from_numpy(each[dist.get_rank() :: 2].copy()) for each in data)
    # Running statistics are not broadcast, as in the other variants.
    wrapped = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(x, training=True), y)
        (loss + sum(model.losses)).backward()
        optimizer.step()

    return step


def step_of_hocket(comm: hk.Communicator, size: Size, options: dict[str, Any]) -> tuple[Call, train.TrainingSetup]:
    """Return the training step of `hocket.keras.fit`, and its setup."""
    model = compile_model(size.depth, size.pixels)
    x, y = make_images(size.batch, size.pixels)
    source = train.source_of((x, (y, None)), comm, batch_size=size.batch, shuffle=False, seed=0, drop_last=False)
    request = train.SetupRequest(size.batch, balance="profile", **options)
    setup = train.choose_setup(request, graph_of_keras(model), source, comm)

    def loss(output: Any, target: Any) -> Any:
        return model._compile_loss(target[0], output, None)

    executor = train.PipelineExecutor(setup.schedule, setup.split, comm, loss)
    trainer = train.Trainer(executor, KerasUpdate(model.optimizer, model.trainable_variables, executor))
    (batch,) = source.batches(0)
    return lambda: trainer.train_step(batch), setup


def modelled_seconds(setup: train.TrainingSetup, size: Size, link: Link) -> dict[int, float]:
    """Simulate a step on several nodes, including the reduction of gradients over all nodes.

    Each node has two ranks with this setup.

    Returns:
        Seconds of a step, by number of nodes.
    """
    table = setup.schedule
    parts = (2 // table.num_ranks) * table.num_micro_batches
    inputs = {setup.split.batch_inputs[0]: torch.from_numpy(make_images(size.batch // parts, size.pixels)[0])}
    stages = train.profile_stages(setup.split, inputs, repeats=2)
    found = {}
    for nodes in NODES:
        costs = train.costs_of_stages(stages, fabric=Hosts(link, OUTER, 2), num_replicas=nodes * 2 // table.num_ranks)
        found[nodes] = simulate(add_gradient_sync(table, costs=costs), costs).makespan_s
    return found


def serve_rank(_: str, *numbers: str) -> None:
    """Run one rank: training steps of a Keras model on one process, and on two or four with every strategy.

    The facts of rank 0 are the seconds of a step by number of nodes, simulated from the measured costs of the stages.
    """
    size = Size(*map(int, numbers))
    torch.set_num_threads(1)
    comm = hk.init()
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
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
    contenders.append(Contender(case, OF_TORCH, looped(step_of_torch(size, pair)) if comm.rank < 2 else nothing))
    link = train.measure_link(comm)
    seconds = {name: modelled_seconds(setups[name], size, link) for name in MODELLED} if comm.rank == 0 else {}
    comm.barrier()
    pin(comm.rank % (os.cpu_count() or 1))
    serve_all(comm, contenders, seconds)


def parts(options: Options) -> PartResults:
    for depth in options.depth or MODELS:
        ranks = job("hocket", __file__, MODELS[depth], NUM_RANKS)
        timeouts = {"start_timeout_s": 900.0, "run_timeout_s": 600.0}
        measurement, seconds_of = measure_with_facts([ranks], f"ResNet-{depth}-v2", options.settings, **timeouts)
        if not options.json:
            for key in measurement.iterations:
                seconds = median(measurement.times(*key))
                print(f"{key.case}, {key.name}: {int(key.case.split()[-2]) / seconds:.1f} images a second")
        yield rows_of(measurement, seconds_of), measurement


def rows_of(measurement: Measurement, seconds: dict[str, dict[str, float]]) -> Iterator[Comparison | Row]:
    """Yield the measured comparisons, and the simulated steps on many nodes with the same images per node."""
    (case,) = measurement.cases
    for name, (_, _, rivals) in WAYS.items():
        for other in rivals:
            yield Comparison(case, name, (other,), label=f"{case}: {name}", unit="ms")
    for name in MODELLED:
        ms_of_nodes = {int(nodes): 1e3 * each for nodes, each in seconds[name].items()}
        one_ms, here_ms = ms_of_nodes.pop(1), 1e3 * median(measurement.times(case, name))
        yield computed(f"{case}: {name}, MODELLED on 1 node", "measured", one_ms, here_ms, "ms")
        for nodes, ms in ms_of_nodes.items():
            label = f"{case} a node: {name}, MODELLED on {nodes} nodes, images a second"
            yield Row(label, "modelled 1 node", ms, one_ms, "ms", nodes * one_ms / ms, None, None, None)


if __name__ == "__main__":
    run_claim(
        "training steps of deep residual networks: data, model and hybrid, with the same number of images per step",
        parts,
        option("--depth", type=int, action="append", choices=tuple(MODELS), help="depth of the model; may be repeated"),
        unit="ms",
    )
