"""How an optimizer changes the parameters that a rank trains."""

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
        """Change the parameters of this rank's stages; `has_weight`: whether any item of the batch counts."""

    def state(self) -> Mapping[str, Any]:
        """Return what this rank knows, such as averages of gradients; `merge` puts that of all ranks together."""

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Put the states of all ranks together to that of a process that trains everything."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what concerns this rank of such a state."""


class TorchUpdate:
    """A torch optimizer of all the model's parameters: it leaves those alone that have no gradient on this rank.

    Args:
        optimizer: see `read_optimizers`.
        own: the parameters that this rank trains.
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
        """Put the states of all ranks together: a state dict of torch's."""
        every = list(states)
        found: dict[int, Any] = {}
        for each in reversed(every):  # where stages have copies, the first one's counts
            found.update(each["state"])
        return {**every[0], "state": dict(sorted(found.items()))}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of this rank's parameters.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        own = {number: each for number, each in state["state"].items() if self._is_own(number)}
        before = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": own})
        pairs = zip(before["param_groups"], self.optimizer.param_groups, strict=True)
        absent = [name for mine, theirs in pairs for name in mine if name not in theirs]
        if absent:
            self.optimizer.load_state_dict(before)
            raise ValueError(f"it has no {absent[0]!r}, which {type(self.optimizer).__name__} has")

    def _is_own(self, number: int) -> bool:
        return id(self._parameters[number]) in self._own


class SeveralUpdates:
    """Several torch optimizers, each of some of the model's parameters, one after the other.

    Args:
        updates: of each.
    """

    def __init__(self, updates: Sequence[TorchUpdate]) -> None:
        self._updates = updates

    def step(self, *, has_weight: bool = True) -> None:
        """Change the parameters."""
        for each in self._updates:
            each.step(has_weight=has_weight)

    def state(self) -> Mapping[str, Any]:
        """Return the states of all of them, in their order."""
        return {"optimizers": [each.state() for each in self._updates]}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Put the states of all ranks together: a list of torch's state dicts."""
        every = [each["optimizers"] for each in states]
        pairs = zip(self._updates, zip(*every, strict=True), strict=True)
        return {"optimizers": [update.merge(of_ranks) for update, of_ranks in pairs]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of this rank's parameters, of all optimizers or of none.

        Raises:
            ValueError: they are of other kinds, other parameters, or another number.
        """
        given = state.get("optimizers", [state])
        if len(given) != len(self._updates):
            raise ValueError(f"it is of {len(given)} optimizers, not of {len(self._updates)}")
        before = [each.optimizer.state_dict() for each in self._updates]
        try:
            for update, each in zip(self._updates, given, strict=True):
                update.load(each)
        except Exception:
            for update, each in zip(self._updates, before, strict=True):
                update.optimizer.load_state_dict(each)
            raise


def read_optimizers(optimizer: GivenOptimizer, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model that pipelines can use.

    Args:
        optimizer: one, several, or what makes one of parameters.
        model: the whole.

    Raises:
        InvalidType, InvalidModel, InvalidArgument: see `check_optimizers`.
    """
    if not isinstance(optimizer, (torch.optim.Optimizer, Sequence)) and callable(optimizer):
        optimizer = optimizer(model.parameters())
    found: list[Any] = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    check_optimizers(found, model)
    return found


def check_optimizers(optimizers: Sequence[Any], model: nn.Module) -> None:
    """Check that optimizers together change exactly what is to be trained of a model, and can do so rank by rank.

    Raises:
        InvalidType: the list is empty, or an item is not an optimizer.
        InvalidModel: there is nothing to train.
        InvalidArgument: a parameter of the model is missing, is in two optimizers, or is not the model's; or an
            optimizer computes the loss again within a step.
    """
    for each in optimizers or [None]:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidType(f"optimizer is a torch optimizer, several, or makes one of parameters, not {each!r}")
    kind = " and ".join(dict.fromkeys(type(each).__name__ for each in optimizers))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise InvalidModel(f"no parameter of {type(model).__name__} requires a gradient: there is nothing to train")
    names = {id(each): name for name, each in model.named_parameters()}
    all_given = [id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    given = set(all_given)
    absent = [name for name, each in trained.items() if id(each) not in given]
    if absent:
        verb = "do" if len(optimizers) > 1 else "does"
        others = f", nor {len(absent) - 1} others" if len(absent) > 1 else ""
        raise InvalidArgument(
            f"{kind} {verb} not have parameter {absent[0]!r} of the model{others}: give it all of them, "
            "or set requires_grad = False of those that stay as they are"
        )
    own = {id(each) for each in model.parameters()}
    if not given <= own:
        raise InvalidArgument(
            f"{kind} has {len(given - own)} parameters that are not the model's, and ranks would update them "
            "inconsistently: make the module that owns them part of the model"
        )
    if len(given) < len(all_given):
        twice = next(each for each in all_given if all_given.count(each) > 1)
        raise InvalidArgument(f"parameter {names[twice]!r} is in two optimizers: a step would change it twice")
    for each in optimizers:
        closure = inspect.signature(type(each).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            kind = type(each).__name__
            raise InvalidArgument(f"{kind} computes the loss again within a step (closure), which a pipeline does not")


def update_of(optimizers: Sequence[torch.optim.Optimizer], own: Iterable[nn.Parameter]) -> Update:
    """Return what changes the parameters that a rank trains by one optimizer, or by several."""
    parameters = list(own)
    updates = [TorchUpdate(each, parameters) for each in optimizers]
    return updates[0] if len(updates) == 1 else SeveralUpdates(updates)


def clip_gradients(executor: PipelineExecutor, limit: float) -> float:
    """Scale all gradients so that their norm is at most `limit`, as `torch.nn.utils.clip_grad_norm_` does for a whole
    model; called by all ranks.

    Every parameter's norm is computed where it is trained, and all ranks compute the whole norm of these, in the order
    of the model's parameters: so it is that of one process, bit for bit.

    Returns:
        The norm before.
    """
    parameters = [each for each in executor.split.model.parameters() if each.requires_grad]
    places = {id(each): number for number, each in enumerate(parameters)}
    norms = torch.zeros(2, len(parameters), dtype=torch.float64)  # and whether there is a gradient
    own = [each for each in parameters if each.grad is not None]
    for parameter in own:
        if executor.speaks_for(parameter):
            norms[0, places[id(parameter)]] = torch.linalg.vector_norm(parameter.grad).double()
            norms[1, places[id(parameter)]] = 1
    executor.comm.all_reduce(norms, timeout=executor.timeout_s)
    given = [each.dtype for each, has_gradient in zip(parameters, norms[1].tolist(), strict=True) if has_gradient]
    dtype = reduce(torch.promote_types, given) if given else torch.float32
    total = torch.linalg.vector_norm(norms[0, norms[1] > 0].to(dtype))
    scale = torch.clamp(limit / (total + 1e-6), max=1.0)
    for parameter in own:
        parameter.grad.mul_(scale)  # type: ignore[union-attr]
    return float(total)
