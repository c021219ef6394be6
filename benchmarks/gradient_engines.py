"""Gradient engines of `hocket.train`: the exchange of all gradients of a model, in one job, in the same rounds.

The gradients have the shapes of ResNet-50, MobileNet and a GPT. Two ranks run on one host, and one on each of the two
hosts of the laboratory, at 1 and 10 Gbit/s. All engines live in the same processes; hocket's mix chooses by a table
that the ranks measure first. "torch" is DistributedDataParallel over gloo, with the same gradients. "gRPC alone" sends
as many bytes to a server and back, and adds nothing.

Awan et al. (arXiv 1810.11112) report that training without gRPC is up to 3.2 times as fast as with it, and 1.8 times
where gRPC carries only the control; their ratios stand beside ours, which are those of the exchange alone.
"""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from statistics import median

import torch
import torch.distributed as dist
from claim import Options, PartResults, measure_jobs, option, run_claim
from grpc_echo import GrpcEcho
from lab import Lab
from libraries import job, lab_job

import hocket as hk
from hocket.bench.gradient_shapes import MODELS, Shapes
from hocket.cli._engine_names import read_engine
from hocket.measure import Comparison, Contender, Measurement, Row, computed, judge, pin, serve
from hocket.measure.loops import looped
from hocket.train.engines.mix import Mix
from hocket.train.engines.timing import EngineStep, float32_specs
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table

OURS, TORCH, GRPC = "mix", "torch", "parameter-server"
ECHO = "gRPC alone"
ELSEWHERE = "parameter-server payload=gloo"
ENGINES = (OURS, "ddp", "fused", "ring", "pipelined-ring", GRPC, ELSEWHERE)
ONE_HOST = "one host"
PLACES = (ONE_HOST, "1 Gbit/s", "10 Gbit/s")
TUNED = Sweep(ops=("all_reduce",), sizes=(4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20), busy_sizes=())


class Gradients(torch.autograd.Function):
    """A function of parameters whose backward pass takes no time."""

    @staticmethod
    def forward(ctx: object, start: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return start.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return gradient, ctx.gradient, None


class OnlyGradients(torch.nn.Module):
    """A model with given gradients, and nothing to compute."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(shape) for shape in shapes.values()])
        self.gradients = [torch.zeros(shape) for shape in shapes.values()]

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            start = Gradients.apply(start, weight, gradient)
        return start


def torch_step(shapes: Shapes) -> Callable[[], None]:
    """Return a backward pass of DistributedDataParallel over gloo."""
    model = torch.nn.parallel.DistributedDataParallel(OnlyGradients(shapes), gradient_as_bucket_view=True)
    start = torch.zeros((), requires_grad=True)
    for _ in range(3):  # it rebuilds its buckets after the first step
        model(start).backward()
    return lambda: model(start).backward()


def nbytes_of(shapes: Shapes) -> int:
    """Return the number of bytes of gradients of single precision."""
    return 4 * sum(prod(shape) for shape in shapes.values())


def serve_rank(_: str, models: str) -> None:
    """Run one rank: one contender for each engine and model."""
    torch.set_num_threads(1)
    comm = hk.init(backends=("shm", "gloo", "mpi"), policy=hk.Policy.fixed({}), timeout=300)
    pin(comm.rank)  # also with two hosts: each rank has its own processor of this machine
    comm.policy = TablePolicy(measure_table(comm, TUNED))
    if comm.num_hosts > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # by the name of a host gloo would find its loopback device
    dist.init_process_group("gloo")
    echo = GrpcEcho(comm)
    contenders, steps = [], []
    for case in models.split(","):
        for name in ENGINES:
            steps.append(EngineStep(read_engine(name), comm, MODELS[case]()))
            contenders.append(Contender(case, name, looped(steps[-1].runner())))
        contenders.append(Contender(case, TORCH, looped(torch_step(MODELS[case]()))))
        contenders.append(Contender(case, ECHO, looped(echo.runner(nbytes_of(MODELS[case]())))))
    serve(contenders, comm.rank, comm.barrier)
    for step in reversed(steps):
        step.close()
    echo.close()
    del contenders, steps
    gc.collect()
    dist.destroy_process_group()
    comm.finalize()


def reason(case: str, rival: str, place: str, ns_per_byte: float) -> str:
    """Return what limits mix's advantage over another engine: equal sums, or the link."""
    reasons = []
    if rival == "ring":
        alone_nbytes = inspect.signature(Mix).parameters["alone_nbytes"].default
        sizes = [each.nbytes for each in float32_specs(MODELS[case]())]
        share = sum(each for each in sizes if each >= alone_nbytes) / sum(sizes)
        reasons.append(f"both sum {share:.0%} of the bytes tensor by tensor")
    if place != ONE_HOST:
        reasons.append(f"the link alone takes {8 / float(place.split()[0]):.1f} of {ns_per_byte:.1f} ns a byte")
    return ", ".join(reasons) or "no reason known"


def rows_of(measurement: Measurement, place: str) -> Iterator[Row]:
    """Yield our engine against each other one, the cost of a byte by each path, and gRPC against no gRPC."""
    for case in measurement.cases:
        nbytes = nbytes_of(MODELS[case]())
        rivals = tuple(name for name in (*ENGINES, TORCH) if name != OURS)
        for rival in rivals:
            label = f"{place}: {case}, hocket's mix against {rival}"
            row = judge(measurement, Comparison(case, OURS, (rival,), 1.0, label=label, unit="ms", needs_cores=False))
            why = "" if row.ratio >= 1 else f"; {reason(case, rival, place, 1e6 * row.ours / nbytes)}"
            yield replace(row, case=row.case + why)
        for name in (OURS, *rivals, ECHO):
            yield computed(
                f"{place}: {case}, {name}, ns a byte", "", 1e9 * median(measurement.times(case, name)) / nbytes, 1, "ns"
            )
        label = f"{place}: {case}, without gRPC against with it (paper: 3.2)"
        others = tuple(name for name in ENGINES if name not in (GRPC, ELSEWHERE))
        best = min(others, key=lambda name: median(measurement.times(case, name)))
        yield judge(measurement, Comparison(case, best, (GRPC,), label=label, unit="ms", needs_cores=False))
        label = f"{place}: {case}, servers over gRPC against gRPC alone"
        yield judge(measurement, Comparison(case, GRPC, (ECHO,), label=label, unit="ms", needs_cores=False))
        label = f"{place}: {case}, without gRPC against gRPC for control (paper: 1.8)"
        yield judge(measurement, Comparison(case, best, (ELSEWHERE,), label=label, unit="ms", needs_cores=False))


def parts(options: Options) -> PartResults:
    models = options.model or list(MODELS)
    for place in options.place or PLACES:
        if place == ONE_HOST:
            measurement = measure_jobs(
                [job("hocket", __file__, [",".join(models)], 2)], place, options.settings, start_timeout_s=300.0
            )
        else:
            with Lab(float(place.split()[0])) as lab:
                ranks = lab_job("hocket", lab, __file__, [",".join(models)], 1)
                measurement = measure_jobs([ranks], place, options.settings, start_timeout_s=300.0)
        yield rows_of(measurement, place), measurement


if __name__ == "__main__":
    run_claim(
        "hocket's mix exchanges the gradients of a model as fast as every other engine, or faster",
        parts,
        option("--place", action="append", choices=PLACES, help="may be repeated"),
        option("--model", action="append", choices=list(MODELS), help="may be repeated"),
        needs_lab=lambda options: options.place != [ONE_HOST],
        unit="ms",
    )
