"""Step times of five training programs, two ranks: over gloo, MPI, shared memory, the tuned mix, and symmetric memory.

The three examples (gpt: sharded optimizer; moe: experts exchange tokens; dlrm: exchange of embeddings) use hocket's
communicator; each variant has a different policy. The transformer is trained with torch's own DDP and FSDP2; there,
"gloo" is torch's backend of that name, and the other variants are hocket's backend with those libraries. All variants
alternate in the same two processes, and must have the same losses.

The mix chooses by a table that the ranks measure first. "symmetric" does the same, but its buckets are in memory that
the ranks share: `Communicator.zeros`, and for torch's DDP and FSDP2 `hocket.torch.use_symmetric_buckets` and the
allocator of the process group.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from claim import Options, PartResults, measure_jobs, run_claim
from ddp_step import BATCH, SEQUENCE, SmallTransformer, text_batch
from libraries import job
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hocket as hk
import hocket.torch
from hocket.measure import Comparison, Contender, serve
from hocket.measure.loops import looped
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import dlrm
import gpt
import moe

VARIANTS = ("mix", "gloo", "mpi", "shm", "symmetric")
OURS, SYMMETRIC = "mix", "symmetric"
TUNED = Sweep(
    ops=("barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send"),
    sizes=(16, 256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20),
    busy_sizes=(),
)
Step = Callable[[], torch.Tensor]


class PrivateMemory:
    """A communicator whose arrays are in private memory of each rank."""

    def __init__(self, comm: hk.Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> object:
        return getattr(self._comm, name)

    def zeros(self, shape: int | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)


def gpt_step(comm: hk.Communicator) -> Step:
    model = gpt.GPT()
    buckets = [gpt.Bucket(comm, layer) for layer in (model.head, *reversed(model.blocks), model.embeddings)]
    torch.manual_seed(1 + comm.rank)
    inputs, targets = torch.randint(gpt.C, (2, gpt.B // comm.size, gpt.T))

    def step() -> torch.Tensor:
        running = gpt.Step()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        for work in [bucket.update(running, 1e-3) for bucket in buckets]:
            running.wait(work)
        return loss

    return step


def moe_step(comm: hk.Communicator) -> Step:
    model = moe.Classifier(comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    (digits, labels), _ = moe.load_digits()
    mine = slice(comm.rank * moe.B // comm.size, (comm.rank + 1) * moe.B // comm.size)

    def step() -> torch.Tensor:
        logits, balance, _ = model(digits[mine], 1.25)
        loss = F.cross_entropy(logits, labels[mine])
        (loss + moe.BALANCE * balance).backward()
        moe.reduce_gradients(comm, model)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def dlrm_step(comm: hk.Communicator) -> Step:
    clicks, model = dlrm.Clicks(0), dlrm.DLRM(comm)
    networks = torch.nn.ModuleList([model.bottom, model.top])
    for network in networks:
        dlrm.Gradients(model, network)
    optimizers = torch.optim.SGD([model.tables], lr=40), torch.optim.Adam(networks.parameters(), lr=3e-3)
    categories, *rest, _ = clicks.draw(2, dlrm.B)
    numbers, targets = (each.chunk(comm.size)[comm.rank] for each in rest)

    def step() -> torch.Tensor:
        running = model.step = dlrm.Step(comm)
        model.zero_grad(set_to_none=False)
        loss = F.binary_cross_entropy_with_logits(model(categories, numbers), targets)
        loss.backward()
        model.tables.grad /= comm.size
        for work in running.reductions:
            running.wait(work)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return step


def transformer_step(wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Step:
    model = wrap(SmallTransformer())
    torch.manual_seed(1 + dist.get_rank())
    inputs, targets = text_batch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step


def wrap_ddp(model: torch.nn.Module, group: dist.ProcessGroup, is_symmetric: bool) -> torch.nn.Module:
    wrapped = DistributedDataParallel(model, process_group=group)
    if is_symmetric:
        hocket.torch.use_symmetric_buckets(wrapped)
    return wrapped


def wrap_fsdp(model: torch.nn.Module, group: dist.ProcessGroup, is_symmetric: bool) -> torch.nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in [*model.layers.layers, model]:
        fully_shard(layer, mesh=mesh)
        if is_symmetric:
            layer.set_allocate_memory_from_process_group_for_comm(True)
    return model


def offer_steps(case: str, makers: dict[str, Callable[[], Step]]) -> Iterator[Contender]:
    """Yield one contender per variant; the losses of the first three steps must be the same in all variants."""
    losses = {}
    for name, make in makers.items():
        torch.manual_seed(0)
        step = make()
        losses[name] = [step().item() for _ in range(3)]
        yield Contender(case, name, looped(step))
    first = next(iter(losses.values()))
    for name, found in losses.items():
        assert torch.allclose(torch.tensor(found), torch.tensor(first), rtol=1e-4), f"{case}, {name}: {losses}"


def serve_rank(_: str) -> None:
    """Run one rank: training steps of the examples, one communicator per variant, and of a transformer in torch."""
    torch.set_num_threads(1)
    assert text_batch()[0].shape == (BATCH, SEQUENCE)
    world = hk.init(backends=("shm", "gloo", "mpi"), policy=hk.Policy.fixed({}), timeout=300)
    table = measure_table(world, TUNED)
    tuned = TablePolicy(table)
    policies = {name: tuned if name in (OURS, SYMMETRIC) else hk.Policy.fixed({"*": name}) for name in VARIANTS}
    comms = {}
    for name, policy in policies.items():
        comm = world.dup()
        comm.policy = policy
        comms[name] = comm if name == SYMMETRIC else PrivateMemory(comm)
    contenders: list[Contender] = []
    for case, make in {"gpt": gpt_step, "moe": moe_step, "dlrm": dlrm_step}.items():
        contenders += offer_steps(case, {name: lambda comm=comm, make=make: make(comm) for name, comm in comms.items()})

    dist.init_process_group("gloo")
    groups: dict[str, dist.ProcessGroup] = {"gloo": dist.new_group(backend="gloo")}
    for name in ("shm", "mpi", OURS, SYMMETRIC):
        backends = ("shm", "gloo", "mpi") if name in (OURS, SYMMETRIC) else name
        options = hocket.torch.Options(backends, policies[name])
        groups[name] = dist.new_group(backend="hocket", pg_options=options, timeout=timedelta(seconds=300))
    ordered = {name: groups[name] for name in VARIANTS}
    for way, wrap in {"DDP": wrap_ddp, "FSDP2": wrap_fsdp}.items():
        makers = {
            name: lambda name=name, group=group, wrap=wrap: transformer_step(
                lambda model: wrap(model, group, name == SYMMETRIC)
            )
            for name, group in ordered.items()
        }
        contenders += offer_steps(f"transformer, {way}", makers)
    serve(contenders, world.rank, world.barrier)
    del contenders
    gc.collect()  # free the models, which keep the groups' threads alive
    dist.destroy_process_group()
    world.finalize()


def parts(options: Options) -> PartResults:
    ranks = job("hocket", __file__, [], 2)
    measurement = measure_jobs([ranks], "training steps, 2 ranks", options.settings, start_timeout_s=600.0)
    found = []
    for case in measurement.cases:
        for rival in VARIANTS[1:4]:
            label = f"{case}: the mix against {rival} alone"
            found.append(Comparison(case, OURS, (rival,), label=label, unit="ms"))
        for rival in ("gloo", OURS):
            label = f"{case}: symmetric memory against {'plain hocket' if rival == OURS else rival}"
            found.append(Comparison(case, SYMMETRIC, (rival,), label=label, unit="ms"))
    yield found, measurement


if __name__ == "__main__":
    run_claim("a training step over the tuned mix of libraries, against each library alone", parts, unit="ms")
