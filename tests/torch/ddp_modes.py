"""Train a small model with DDP in many modes over the backend argv[1]; write the results to the folder argv[2].

argv[3], argv[4] and so on name the modes; without them, all of `MODES` run. Annotations are evaluated, since torch
reads those of hooks.
"""

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

STEPS = 3
WIDTH = 24
SMALL_MB = 0.002  # one layer in a bucket

# By name: indices of the layers that are recomputed, each in its own checkpoint.
CHECKPOINTS = {"one": (1,), "first": (0,), "two": (1, 2), "all": (0, 1, 2, 3)}


class Net(nn.Module):
    """Four layers, some of them recomputed in the backward pass.

    Args:
        recomputed: a name in `CHECKPOINTS`; "nested": a checkpoint within a checkpoint; "turns": another layer at each
            step; "": no layer.
        reentrant: see `torch.utils.checkpoint`.
        unused: whether a layer is not called; "turns": at every second step.
        normalized: whether the model has batch normalization, and so buffers.
    """

    def __init__(self, recomputed: str, reentrant: bool, unused: bool | str, normalized: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.normalize = nn.BatchNorm1d(WIDTH) if normalized else nn.Identity()
        self.spare = nn.Linear(WIDTH, WIDTH) if unused else None
        self.recomputed, self.reentrant, self.unused = recomputed, reentrant, unused
        self.step = 0

    def recompute(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        again: torch.Tensor = checkpoint(function, x, use_reentrant=self.reentrant)
        return again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.layers
        if self.recomputed == "nested":
            x = self.recompute(lambda y: third(self.recompute(second, torch.tanh(first(y)))), x)
            x = self.normalize(fourth(x))
        else:
            chosen = (self.step % 4,) if self.recomputed == "turns" else CHECKPOINTS.get(self.recomputed, ())
            for number, layer in enumerate(self.layers):
                x = torch.tanh(self.recompute(layer, x) if number in chosen else layer(x))
            x = self.normalize(x)
        if self.spare is not None and self.unused == "turns" and self.step % 2:
            x = self.spare(x)
        self.step += 1
        return x


@dataclass(frozen=True)
class Mode:
    """A mode of training.

    Args:
        options: options of DistributedDataParallel; `late_options` returns further options, from the model.
        recomputed, reentrant, unused, normalized: see `Net`.
        prepare: called with the parallel model and its optimizer before the first step; may return another optimizer.
        step: runs the forward and the backward pass of the parallel model on an input, and returns the loss.
        around: makes the context of the steps.
        lengths: number of steps of each rank.
    """

    options: dict[str, Any] = field(default_factory=dict)
    late_options: Callable[[Net], dict[str, Any]] = lambda _: {}
    recomputed: str = ""
    reentrant: bool = False
    unused: bool | str = False
    normalized: bool = False
    prepare: Callable[[DistributedDataParallel, torch.optim.Optimizer], torch.optim.Optimizer | None] | None = None
    step: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    around: Callable[[DistributedDataParallel], AbstractContextManager[object]] = lambda _: nullcontext()
    lengths: tuple[int, int] = (STEPS, STEPS)
    compiled: bool = False


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def plain_step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, x)
    loss.backward()
    return loss


def accumulate(model: Any, x: torch.Tensor) -> torch.Tensor:
    with model.no_sync():
        loss_of(model, x).backward()
    loss = loss_of(model, 2 * x)
    loss.backward()
    return loss


def two_losses(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Run two forward passes, then one backward pass through both."""
    loss = loss_of(model, x) + loss_of(model, 2 * x)
    loss.backward()
    return loss


def twice_through_one_graph(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, x)
    with model.no_sync():
        loss.backward(retain_graph=True)
    loss.backward()
    return loss


def gradient_of_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Add a penalty on the gradient of the input, as in WGAN-GP."""
    x = x.clone().requires_grad_()
    loss = loss_of(model, x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    loss = loss + slope.square().sum()
    loss.backward()
    return loss


def create_graph(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, x)
    loss.backward(create_graph=True)
    return loss


def autocast_step(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, x)
    loss.backward()
    return loss


def another_collective_in_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Register a hook on a tensor that is not a leaf; the hook waits for its own collective, and for its future."""
    y = model(x)

    def average(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient, async_op=True).get_future().wait()
        work = dist.all_reduce(gradient, op=dist.ReduceOp.MAX, async_op=True)
        work.wait()
        return gradient

    y.register_hook(average)
    loss: torch.Tensor = y.square().mean()
    loss.backward()
    return loss


def collective_after_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Queue a callback at the end of the pass that waits for the future of its own operation."""
    y = model(x)
    found = []

    def at_the_end() -> None:
        total = torch.ones(3)
        found.append(dist.all_reduce(total, async_op=True).get_future().wait()[0].sum().item())

    def queue(gradient: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(at_the_end)

    y.register_hook(queue)
    loss: torch.Tensor = y.square().mean()
    loss.backward()
    assert found == [3.0 * dist.get_world_size()]
    return loss


def raise_in_backward(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Raise in a pass after some gradients were sent; the next pass must be complete, as torch defines it."""
    y = model.module.layers[0](x)

    def fail(gradient: torch.Tensor) -> None:
        raise ArithmeticError("for once")

    y.register_hook(fail)
    try:
        y.sum().backward()
    except ArithmeticError:
        pass
    return plain_step(model, x)


def static_afterwards(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    model._set_static_graph()


def comm_hook(kind: DDPCommHookType) -> Callable[[DistributedDataParallel, torch.optim.Optimizer], None]:
    def prepare(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        register_ddp_comm_hook(kind, model, None if kind is DDPCommHookType.NOOP else dist.group.WORLD)

    return prepare


def compressed(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    state = power_sgd.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)


def builtin_hook(name: str) -> Callable[[DistributedDataParallel, torch.optim.Optimizer], None]:
    def prepare(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        model._register_builtin_comm_hook(getattr(BuiltinCommHookType, name))

    return prepare


def own_hook(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Register a hook with a reduce-scatter, an all-gather, and a callback of the last future."""

    def scatter_then_gather(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(dist.get_world_size())
        padded = nn.functional.pad(buffer, (0, buffer.numel() % 2))
        part, whole = padded.new_empty(padded.numel() // 2), torch.empty_like(padded)
        dist.reduce_scatter_single(part, padded, async_op=True).wait()  # gloo would start both operations at once
        gathered = dist.all_gather_single(whole, part, async_op=True).get_future()
        return gathered.then(lambda _: whole[: buffer.numel()])

    model.register_comm_hook(None, scatter_then_gather)


def waiting_hook(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Register a hook that waits, as hooks for gossip and for logging do."""

    def wait(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        total = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().wait()[0]
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(total)
        return done

    model.register_comm_hook(None, wait)


def several_in_one_hook(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Register a hook with two operations for each bucket, whose futures torch's C++ code collects in one."""

    def halves(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(2)
        works = [dist.all_reduce(half, async_op=True) for half in buffer.chunk(2)]
        return torch.futures.collect_all([work.get_future() for work in works]).then(lambda _: buffer)

    model.register_comm_hook(None, halves)


def post_local(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    state = local_sgd.PostLocalSGDState(process_group=None, subgroup=dist.group.WORLD, start_localSGD_iter=2)
    model.register_comm_hook(state, local_sgd.post_localSGD_hook)


def fused(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    model._register_fused_optim(torch.optim.SGD, lr=0.1)


def zero(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


class LateSGD(torch.optim.SGD):
    """Skips its first steps, like `ZeroRedundancyOptimizer` until it has recorded the buckets of DDP."""

    num_left_out = 2

    def step(self, closure: Any = None) -> None:
        if self.num_left_out > 0:
            self.num_left_out -= 1
        else:
            super().step(closure)


def late(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> LateSGD:
    return LateSGD(model.parameters(), lr=0.1)


def overlapped_zero(
    has_shards: bool,
) -> Callable[[DistributedDataParallel, torch.optim.Optimizer], torch.optim.Optimizer]:
    """Register a hook that waits, in the backward pass, for sums and for broadcasts of each rank's updates."""

    def prepare(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, overlap_with_ddp=True)
        model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, zero, shard_buckets=has_shards))
        return zero

    return prepare


def buffer_hook(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    def broadcast(_: object, buffers: dict[str, torch.Tensor]) -> list[torch.futures.Future[Any]]:
        return [
            dist.all_reduce(buffer, async_op=True).get_future()
            for buffer in buffers.values()
            if buffer.is_floating_point()
        ]

    model._register_buffer_comm_hook(None, broadcast)


def delayed_gradients(model: Net) -> dict[str, Any]:
    """Delay the reduction of the last layer's gradients until the gradient of the first weight is accumulated."""
    return {
        "delay_all_reduce_named_params": list(model.layers[3].named_parameters("layers.3")),
        "param_to_hook_all_reduce": model.layers[0].weight,
    }


def _products() -> Iterator[tuple[str, Mode]]:
    recomputations = [("", False)]
    recomputations += [(name, reentrant) for name in (*CHECKPOINTS, "nested", "turns") for reentrant in (False, True)]
    for buckets, bucket_cap_mb in (("small", SMALL_MB), ("default", None)):
        for is_static in (False, True):
            for has_views in (False, True):
                for recomputed, reentrant in recomputations:
                    options = {"static_graph": is_static, "gradient_as_bucket_view": has_views}
                    name = "-".join(
                        [buckets]
                        + ["static"] * is_static
                        + ["views"] * has_views
                        + [recomputed] * bool(recomputed)
                        + ["reentrant"] * reentrant
                    )
                    yield (
                        name,
                        Mode({**options, "bucket_cap_mb": bucket_cap_mb}, recomputed=recomputed, reentrant=reentrant),
                    )


_SMALL = {"bucket_cap_mb": SMALL_MB}
_STATIC = {**_SMALL, "static_graph": True}
_UNUSED = {**_SMALL, "find_unused_parameters": True}
_STEPS = [accumulate, two_losses, twice_through_one_graph, gradient_of_gradient, create_graph, autocast_step,
          another_collective_in_backward, collective_after_backward, raise_in_backward]  # fmt: skip
_OWN_HOOKS = [own_hook, waiting_hook, several_in_one_hook, post_local, fused]

MODES = {
    **dict(_products()),
    "unused": Mode(_SMALL, unused=True),
    "unused-found": Mode(_UNUSED, unused=True),
    "unused-found-turns": Mode(_UNUSED, unused="turns"),
    "unused-found-views": Mode({**_UNUSED, "gradient_as_bucket_view": True}, unused="turns"),
    "unused-found-two-reentrant": Mode(_UNUSED, recomputed="two", reentrant=True, unused="turns"),
    "unused-static": Mode(_STATIC, unused=True),
    "unused-static-found": Mode({**_STATIC, "find_unused_parameters": True}, unused=True),
    "unused-static-turns": Mode(_STATIC, unused="turns"),
    "unused-skipped": Mode({**_UNUSED, "skip_all_reduce_unused_params": True}, unused=True),
    "static-set-later": Mode(_SMALL, prepare=static_afterwards),
    "static-set-later-two-reentrant": Mode(_SMALL, recomputed="two", reentrant=True, prepare=static_afterwards),
    "buffers": Mode(_SMALL, normalized=True),
    "buffers-static": Mode(_STATIC, normalized=True),
    "buffers-left-alone": Mode({**_SMALL, "broadcast_buffers": False}, normalized=True),
    "buffers-hook": Mode(_SMALL, normalized=True, prepare=buffer_hook),
    "buffers-of-forward": Mode({**_SMALL, "broadcast_buffers": None, "forward_sync_buffers": True}, normalized=True),
    "buffers-not-of-forward": Mode({**_SMALL, "forward_sync_buffers": False}, normalized=True),
    "delayed": Mode({"gradient_as_bucket_view": False}, late_options=delayed_gradients),
    "delayed-small": Mode(_SMALL, late_options=delayed_gradients),
    "group": Mode(_SMALL, late_options=lambda _: {"process_group": dist.new_group()}),
    "mesh": Mode(_SMALL, late_options=lambda _: {"device_mesh": init_device_mesh("cpu", (dist.get_world_size(),))}),
    "no-init-sync": Mode({**_SMALL, "init_sync": False}),
    "join": Mode(_SMALL, around=lambda model: model.join(), lengths=(2, 4)),
    "join-first": Mode(_SMALL, around=lambda model: model.join(), lengths=(4, 1)),
    "join-throws": Mode(_SMALL, around=lambda model: model.join(throw_on_early_termination=True), lengths=(2, 4)),
    "join-static": Mode(_STATIC, around=lambda model: model.join(), lengths=(2, 4)),
    "mixed": Mode({**_SMALL, "mixed_precision": _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)}),
    "mixed-two-reentrant": Mode(
        {**_SMALL, "mixed_precision": _MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)},
        recomputed="two",
        reentrant=True,
    ),
    "compiled": Mode({}, compiled=True),
    "compiled-static": Mode({"static_graph": True}, compiled=True),
    "compiled-two-reentrant": Mode({}, recomputed="two", reentrant=True, compiled=True),
    "compiled-small": Mode({"bucket_cap_mb_list": [0.002, 0.003]}, compiled=True),
    "buckets-listed": Mode({"bucket_cap_mb_list": [1, 2]}),
    "batched-copy": Mode({**_SMALL, "batched_grad_copy": True}),
    "zero": Mode(_SMALL, prepare=zero),
    "late": Mode(_SMALL, prepare=late, lengths=(6, 6)),
    # without `hook_with_zero_step_interleaved`, whose callbacks issue operations in an undefined order
    **{f"zero-overlapped{suffix}": Mode(_SMALL, prepare=overlapped_zero(has_shards), lengths=(6, 6))
       for suffix, has_shards in (("", False), ("-shards", True))},
    "hook-power_sgd": Mode(prepare=compressed),  # one bucket: its callbacks issue operations, in any order
    **{f"{options}-{step.__name__}": Mode(given, step=step)
       for options, given in (("small", _SMALL), ("static", _STATIC)) for step in _STEPS},
    **{f"two-reentrant-{step.__name__}": Mode(_SMALL, recomputed="two", reentrant=True, step=step) for step in _STEPS},
    **{f"hook-built-in-{name}": Mode(_SMALL, prepare=builtin_hook(name)) for name in BuiltinCommHookType.__members__},
    **{f"hook-{kind.name}": Mode(_SMALL, prepare=comm_hook(kind)) for kind in DDPCommHookType},
    **{f"{hook.__name__}{suffix}": Mode(options, **recomputed, prepare=hook) for hook in _OWN_HOOKS
       for suffix, options, recomputed in (("", _SMALL, {}), ("-static", _STATIC, {}),
                                           ("-two-reentrant", _SMALL, {"recomputed": "two", "reentrant": True}))},
}  # fmt: skip

# Modes without valid numbers over gloo, and the mode with the right numbers. torch does not wait for delayed sums
# (`DistributedDataParallel._delayed_all_reduce_hook`), so the optimizer sometimes reads incomplete sums; torch refuses
# ZeRO that overlaps with DDP over gloo, where it "may meet hangs".
LIKE = {
    "delayed": "default",
    "delayed-small": "small",
    **{name: "late" for name in MODES if name.startswith("zero-")},
}

LATE_OPTIONS = {"delay_all_reduce_named_params", "param_to_hook_all_reduce", "process_group", "device_mesh"}
# options that no mode sets
NOT_FOR_CPUS = {"device_ids", "output_device"}
WITHOUT_EFFECT = {"dim", "check_reduction"}  # of devices alone; deprecated


def train(mode: Mode) -> list[float]:
    """Return the losses of the steps, and the sum of the weights at the end."""
    torch.manual_seed(5)
    model = Net(mode.recomputed, mode.reentrant, mode.unused, mode.normalized)
    parallel = DistributedDataParallel(model, **mode.options, **mode.late_options(model))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if mode.prepare is not None:
        optimizer = mode.prepare(parallel, optimizer) or optimizer
    called = torch.compile(parallel, backend="aot_eager") if mode.compiled else parallel
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    with mode.around(parallel):
        for _ in range(mode.lengths[dist.get_rank()]):
            x = torch.randn(6, WIDTH, generator=generator, requires_grad=True)
            optimizer.zero_grad()
            losses.append((mode.step or plain_step)(called, x).item())
            optimizer.step()
    return [*losses, sum(parameter.sum().item() for parameter in model.parameters())]


def main() -> None:
    """Write a file for each mode with its numbers, or the type of its error."""
    backend, folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    found: dict[str, list[float] | str] = {}
    for name in names or MODES:
        print(f"mode {name}", flush=True)
        try:
            found[name] = train(MODES[name])
        except Exception as error:
            found[name] = type(error).__name__
            print(f"  {type(error).__name__}: {str(error)[:300]}", flush=True)
        dist.barrier()
    Path(folder, f"{backend}-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
