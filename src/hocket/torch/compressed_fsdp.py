"""Reduce-scatters of FSDP2 (`torch.distributed.fsdp.fully_shard`) that compress gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from hocket.collectives import Compressor, ResidualState
from hocket.collectives import compressor as find_compressor
from hocket.collectives.residual import check_saved
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType, UnsupportedCall
from hocket.torch.process_group import process_group_of

_VERSION = 2


class CompressedShards:
    """The residuals of a sharded model on one rank; see `compress_fsdp`.

    Examples:
        >>> import torch
        >>> from torch.distributed.fsdp import fully_shard
        >>> store = torch.distributed.FileStore("shards", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = fully_shard(torch.nn.Linear(4, 2, bias=False))
        >>> shards = hk.torch.compress_fsdp(model, "ok-topk(density=0.25)")
        >>> model(torch.tensor([[8.0, 4.0, 2.0, 1.0]])).sum().backward()
        >>> model.weight.grad.to_local()  # 2 of 8 elements, of which each rank has a part
        tensor([[8., 0., 0., 0.]])
        >>> sorted(shards.state_dict()["modules"])
        ['']
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(self, reduce_scatters: Mapping[str, _CompressedReduceScatter], num_ranks: int, rank: int) -> None:
        self._reduce_scatters, self._num_ranks, self._rank = dict(reduce_scatters), num_ranks, rank

    def explain(self) -> str:
        """Return a line for each sharded module: its size, and how its latest gradients were summed."""
        return "\n".join(f"{name or 'the model'}: {each.latest}" for name, each in self._reduce_scatters.items())

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank: a residual for each sharded module, by name."""
        modules = {
            name: torch.from_numpy(each.state.residual.copy())
            for name, each in self._reduce_scatters.items()
            if each.state.residual is not None
        }
        num_steps = max(each.state.num_steps for each in self._reduce_scatters.values())
        saved = {"version": _VERSION, "world_size": self._num_ranks, "rank": self._rank}
        return saved | {"num_steps": num_steps, "modules": modules}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned on the same rank of as many.

        Raises:
            InvalidArgument, InvalidType: it is not such a dictionary, is of another rank, of another number of ranks,
                since the order of elements depends on it, or of another model; then nothing has changed.
        """
        check_saved(saved, "a saved state", _VERSION, ("world_size", "rank", "num_steps", "modules"))
        for what in ("world_size", "rank"):
            if type(saved[what]) is not int:
                raise InvalidType(f"{what} must be an int, not {saved[what]!r}")
        if saved["world_size"] != self._num_ranks:
            raise InvalidArgument(
                f"the residuals are those of one of {saved['world_size']} ranks, but there are {self._num_ranks}: "
                "shards of another number of ranks have their elements in another order"
            )
        if saved["rank"] != self._rank:
            raise InvalidArgument(f"the residuals are those of rank {saved['rank']}, but this is rank {self._rank}")
        if type(saved["num_steps"]) is not int or saved["num_steps"] < 0:
            raise InvalidArgument(f"num_steps must be an int of 0 or more, not {saved['num_steps']!r}")
        if not isinstance(saved["modules"], Mapping):
            raise InvalidType(f"modules must be a mapping, not {type(saved['modules']).__name__}")
        for name, residual in saved["modules"].items():
            if name not in self._reduce_scatters:
                raise InvalidArgument(f"the saved residuals name a module {name!r}, which is not sharded here")
            is_vector = isinstance(residual, torch.Tensor) and residual.dtype == torch.float32 and residual.ndim == 1
            if not is_vector or not bool(torch.isfinite(residual).all()):
                raise InvalidArgument(f"the residual of {name!r} must be a vector of finite float32")
            numel = self._reduce_scatters[name].numel
            if numel is not None and len(residual) != numel:
                raise InvalidArgument(f"the residual of {name!r} has {len(residual)} elements, not {numel}")
        arrays = {name: residual.detach().cpu().numpy().copy() for name, residual in saved["modules"].items()}
        for name, each in self._reduce_scatters.items():
            each.state.residual = arrays.get(name)
            each.state.num_steps = saved["num_steps"]


class _CompressedReduceScatter(ReduceScatter):
    """The reduce-scatter of one sharded module."""

    def __init__(self, compressor: Compressor, name: str, nonfinite: str, comm: Communicator | None) -> None:
        self._compressor, self._nonfinite, self._comm = compressor, nonfinite, comm
        self.state = ResidualState(f"the gradients of {name or 'the model'}")
        self.numel: int | None = None
        self.latest = "no sum yet"

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        if async_op:
            raise UnsupportedCall("compressed gradients of FSDP2 are summed at once: pass async_op=False")
        comm = process_group_of(group).communicator if self._comm is None else self._comm
        if comm.size != group.size():
            raise InvalidArgument(f"the shards are those of {group.size()} ranks, but comm has {comm.size}")
        self.numel = input_tensor.numel()
        found = comm.compressed_reduce_scatter(
            output_tensor,
            input_tensor,
            self._compressor,
            state=self.state,
            op=_reduction(op),
            nonfinite=self._nonfinite,
        )
        how = "dense" if found.is_dense else f"compressed, {found.nbytes} of {4 * self.numel} bytes sent"
        self.latest = f"{self.numel} elements: {how}: {found.why}"


def _reduction(op: Any) -> str:
    for known, name in ((dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "avg")):
        if op == known:
            return name
    raise UnsupportedCall(
        f"compressed gradients of FSDP2 can be summed or averaged, not reduced by {op}: leave out "
        "set_gradient_divide_factor"
    )


def compress_fsdp(
    model: torch.nn.Module,
    compressor: Compressor | str,
    *,
    nonfinite: str = "raise",
    comm: Communicator | None = None,
) -> CompressedShards:
    """Let a model that `fully_shard` has sharded sum its gradients compressed.

    Of a sparse sum only the first phase is needed: each rank sends its largest elements to the ranks that have their
    parameters. What is not sent waits in a residual of the size of the whole gradient on each rank; so this needs more
    memory than FSDP2 alone. `no_sync` (set_requires_gradient_sync) and hybrid sharding work as before.

    Args:
        model: a module with FSDP2 modules in it, or one itself.
        compressor: such as ``"ok-topk(density=0.01)"``, see `hocket.collectives.compressors`; those that sum whole
            tensors (PowerSGD, deep gradient compression) are refused.
        nonfinite: see `Communicator.compressed_all_reduce`.
        comm: a communicator between the ranks that share a model, for process groups of other backends.

    Returns:
        The residuals, to save them.

    Raises:
        InvalidArgument: no module is sharded, one is compressed already, the compressor has no reduce-scatter, or a
            module has several groups of parameters.
        InvalidType: an argument has another type.

    Examples:
        >>> import torch
        >>> from torch.distributed.fsdp import fully_shard
        >>> store = torch.distributed.FileStore("fsdp", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = fully_shard(torch.nn.Linear(4, 2, bias=False))
        >>> print(hk.torch.compress_fsdp(model, "cast(bfloat16)").explain())
        the model: no sum yet
        >>> torch.distributed.destroy_process_group()
    """
    chosen = find_compressor(compressor)
    if not isinstance(model, torch.nn.Module):
        raise InvalidType(f"model must be a torch module, not {type(model).__name__}")
    if nonfinite not in ("raise", "pass"):
        raise InvalidArgument(f"nonfinite must be one of raise, pass, not {nonfinite!r}")
    if comm is not None and not isinstance(comm, Communicator):
        raise InvalidType(f"comm must be a hocket communicator, not {type(comm).__name__}")
    if type(chosen).scatter_steps is Compressor.scatter_steps:
        raise InvalidArgument(f"{type(chosen).__name__} sums whole tensors, but FSDP2 sums shards: use another one")
    sharded = {name: each for name, each in model.named_modules() if isinstance(each, FSDPModule)}
    if not sharded:
        raise InvalidArgument("no module of the model is sharded: call torch.distributed.fsdp.fully_shard before")
    groups = {name: each._get_fsdp_state()._fsdp_param_groups for name, each in sharded.items()}
    for name, of_module in groups.items():
        if len(of_module) > 1:
            raise InvalidArgument(
                f"module {name!r} has several groups of parameters (a shard_placement_fn with several meshes), for "
                "which FSDP2 takes no reduce-scatter"
            )
        if any(isinstance(each._reduce_scatter_comm, _CompressedReduceScatter) for each in of_module):
            raise InvalidArgument(f"module {name!r} is compressed already: call compress_fsdp once")
    made = {name: _CompressedReduceScatter(chosen, name, nonfinite, comm) for name in sharded}
    for name, each in sharded.items():
        each.set_custom_reduce_scatter(made[name])
    meshes: list[Any] = [each.mesh_info for of_module in groups.values() for each in of_module]
    num_ranks, rank = (meshes[0].shard_mesh_size, meshes[0].shard_mesh_rank) if meshes else (1, 0)
    return CompressedShards(made, num_ranks, rank)
