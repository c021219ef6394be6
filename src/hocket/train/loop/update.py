"""Updates of the parameters that a rank trains, by torch's optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from hocket.errors import InvalidArgument, InvalidModel, InvalidType
from hocket.train.run.executor import PipelineExecutor

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
GivenOptimizer: TypeAlias = torch.optim.Optimizer | MakeOptimizer | Sequence[torch.optim.Optimizer]


class Update(Protocol):
    """Changes parameters by their gradients, and can be saved."""

    def step(self, *, has_weight: bool = True) -> None:
        """Change the parameters of this rank's stages; `has_weight`: whether any item of the batch has a weight."""

    def state(self) -> Mapping[str, Any]:
        """Return this rank's state, such as averages of gradients, for `merge`."""

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the state of a process that trains all parameters, from the states of all ranks."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Load this rank's part of a merged state."""


class TorchUpdate:
    """A torch optimizer of all parameters of the model; it skips parameters without a gradient on this rank.

    Args:
        optimizer: see `read_optimizers`.
        own: the parameters that this rank trains.

    Examples:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(layer.weight)
        >>> update = hk.train.TorchUpdate(torch.optim.SGD(layer.parameters(), lr=0.5), layer.parameters())
        >>> layer.weight.grad = torch.ones(1, 2)
        >>> update.step()
        >>> layer.weight.tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, own: Iterable[nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._own = {id(each) for each in own if each.requires_grad}

    def step(self, *, has_weight: bool = True) -> None:
        """Change the parameters."""
        self.optimizer.step()

    def state(self) -> Mapping[str, Any]:
        """Return the optimizer's state of this rank's parameters."""
        whole = self.optimizer.state_dict()
        return {**whole, "state": {number: each for number, each in whole["state"].items() if self._is_own(number)}}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Merge the states of all ranks into a state dict of torch's."""
        every = list(states)
        merged: dict[int, Any] = {}
        for each in reversed(every):  # of copies of a stage, the first one counts
            merged.update(each["state"])
        return {**every[0], "state": dict(sorted(merged.items()))}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of this rank's parameters.

        Raises:
            ValueError: the state is of another kind of optimizer, or of other parameters.
        """
        own = {number: each for number, each in state["state"].items() if self._is_own(number)}
        before = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": own})
        pairs = zip(before["param_groups"], self.optimizer.param_groups, strict=True)
        absent = [name for mine, theirs in pairs for name in mine if name not in theirs]
        if absent:
            self.optimizer.load_state_dict(before)
            raise ValueError(f"its groups lack {absent[0]!r}, which {type(self.optimizer).__name__} needs")

    def _is_own(self, number: int) -> bool:
        return id(self._parameters[number]) in self._own


class SeveralUpdates:
    """Several torch optimizers, each of some of the model's parameters; they step one after the other.

    Args:
        updates: an update for each optimizer.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[1].parameters())]
        >>> update = hk.train.SeveralUpdates([hk.train.TorchUpdate(each, model.parameters()) for each in optimizers])
        >>> model(torch.ones(3, 2)).sum().backward()
        >>> update.step()
        >>> [len(state["state"]) for state in update.state()["optimizers"]]  # SGD without momentum has no state
        [0, 2]
    """

    def __init__(self, updates: Sequence[TorchUpdate]) -> None:
        self._updates = updates

    def step(self, *, has_weight: bool = True) -> None:
        """Change the parameters."""
        for each in self._updates:
            each.step(has_weight=has_weight)

    def state(self) -> Mapping[str, Any]:
        """Return the states of all optimizers, in order."""
        return {"optimizers": [each.state() for each in self._updates]}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Merge the states of all ranks into a list of torch's state dicts."""
        every = [each["optimizers"] for each in states]
        pairs = zip(self._updates, zip(*every, strict=True), strict=True)
        return {"optimizers": [update.merge(of_ranks) for update, of_ranks in pairs]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of this rank's parameters; if one optimizer fails, all keep their states.

        Raises:
            ValueError: the state has optimizers of other kinds, of other parameters, or another number of them.
        """
        states = state.get("optimizers", [state])
        if len(states) != len(self._updates):
            raise ValueError(f"it has {len(states)} optimizers, not {len(self._updates)}")
        before = [each.optimizer.state_dict() for each in self._updates]
        try:
            for update, each in zip(self._updates, states, strict=True):
                update.load(each)
        except Exception:
            for update, each in zip(self._updates, before, strict=True):
                update.optimizer.load_state_dict(each)
            raise


def read_optimizers(optimizer: GivenOptimizer, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the checked optimizers of a model as a list.

    Args:
        optimizer: an optimizer, a list of optimizers, or a function from parameters to an optimizer.
        model: the whole model.

    Raises:
        InvalidType: the list is empty, or an item is not an optimizer.
        InvalidModel: no parameter of the model requires a gradient.
        InvalidArgument: the optimizers lack a parameter of the model, or have one twice, or one of another model; or an
            optimizer needs to compute the loss again within a step.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> optimizers = hk.train.read_optimizers(lambda parameters: torch.optim.Adam(parameters), model)
        >>> [type(each).__name__ for each in optimizers]
        ['Adam']
        >>> hk.train.read_optimizers(torch.optim.Adam(model[0].parameters()), model)
        Traceback (most recent call last):
            ...
        hocket.errors.InvalidArgument: Adam does not have parameter '1.weight' of the model...
    """
    if not isinstance(optimizer, (torch.optim.Optimizer, Sequence)) and callable(optimizer):
        optimizer = optimizer(model.parameters())
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    check_optimizers(optimizers, model)
    return optimizers


def check_optimizers(optimizers: Sequence[Any], model: nn.Module) -> None:
    """Check that optimizers together have exactly the trained parameters of a model, and can step on each rank.

    Raises:
        InvalidType, InvalidModel, InvalidArgument: see `read_optimizers`.
    """
    for each in optimizers or [None]:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidType(
                "optimizer must be a torch optimizer, a list of them, or a function from parameters to one, not "
                f"{each!r}"
            )
    kind = " and ".join(dict.fromkeys(type(each).__name__ for each in optimizers))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise InvalidModel(f"no parameter of {type(model).__name__} requires a gradient: set requires_grad = True")
    names = {id(each): name for name, each in model.named_parameters()}
    all_ids = [id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    ids = set(all_ids)
    absent = [name for name, each in trained.items() if id(each) not in ids]
    if absent:
        verb = "do" if len(optimizers) > 1 else "does"
        others = f", nor {len(absent) - 1} others" if len(absent) > 1 else ""
        raise InvalidArgument(
            f"{kind} {verb} not have parameter {absent[0]!r} of the model{others}: pass all parameters to it, "
            "or set requires_grad = False on those that stay fixed"
        )
    own = {id(each) for each in model.parameters()}
    if not ids <= own:
        raise InvalidArgument(
            f"{kind} has {len(ids - own)} parameters that are not the model's, and ranks would update them "
            "inconsistently: make the module that owns them part of the model"
        )
    if len(ids) < len(all_ids):
        twice = next(each for each in all_ids if all_ids.count(each) > 1)
        raise InvalidArgument(f"parameter {names[twice]!r} is in two optimizers: a step would change it twice")
    for each in optimizers:
        closure = inspect.signature(type(each).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            kind = type(each).__name__
            raise InvalidArgument(
                f"{kind} needs a closure that computes the loss again within a step, which a pipeline cannot do: use "
                "another optimizer"
            )


def update_of(optimizers: Sequence[torch.optim.Optimizer], own: Iterable[nn.Parameter]) -> Update:
    """Return the update of the parameters that a rank trains, by one optimizer or several."""
    parameters = list(own)
    updates = [TorchUpdate(each, parameters) for each in optimizers]
    return updates[0] if len(updates) == 1 else SeveralUpdates(updates)


def clip_gradients(executor: PipelineExecutor, limit: float) -> float:
    """Scale all gradients so that their norm is at most `limit`, as `torch.nn.utils.clip_grad_norm_` does for a whole
    model; called by all ranks.

    Each rank computes the norms of the parameters that it trains. All ranks then compute the whole norm from these, in
    the order of the model's parameters, so that it equals the norm of one process bit for bit.

    Returns:
        The norm before scaling.
    """
    parameters = [each for each in executor.split.model.parameters() if each.requires_grad]
    places = {id(each): number for number, each in enumerate(parameters)}
    norms = torch.zeros(2, len(parameters), dtype=torch.float64)  # row 0: norms; row 1: whether a gradient exists
    own = [each for each in parameters if each.grad is not None]
    for parameter in own:
        if executor.speaks_for(parameter):
            norms[0, places[id(parameter)]] = torch.linalg.vector_norm(parameter.grad).double()
            norms[1, places[id(parameter)]] = 1
    executor.comm.all_reduce(norms, timeout=executor.timeout_s)
    dtypes = [each.dtype for each, has_gradient in zip(parameters, norms[1].tolist(), strict=True) if has_gradient]
    dtype = reduce(torch.promote_types, dtypes) if dtypes else torch.float32
    total = torch.linalg.vector_norm(norms[0, norms[1] > 0].to(dtype))
    scale = torch.clamp(limit / (total + 1e-6), max=1.0)
    for parameter in own:
        parameter.grad.mul_(scale)  # type: ignore[union-attr]
    return float(total)
