"""A gradient engine under a training loop of one's own: after `backward`, gradients are means over all ranks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidState, InvalidType
from hocket.train.checks import check_alike
from hocket.train.engines.engine import EXIST, GradientEngine, SummingEngine, TensorSpec, UpdatingEngine
from hocket.train.engines.registry import DEFAULT, EngineChoice
from hocket.train.engines.servers.optimizers import TorchServedOptimizer
from hocket.train.engines.trained import TrainedParameters, check_gradient, check_step


class GradientExchange:
    """Trains a model on all ranks by a gradient engine, under a loop of one's own, which does not change.

    All ranks make it with equal models, and train them on data of their own. After ``loss.backward()``, every
    ``.grad`` is the mean over all ranks, as with torch's DistributedDataParallel. So clipping, scalers of gradients and
    every optimizer work as in one process. A parameter that no rank's loss depends on has no gradient; if some ranks'
    do, the others count as 0.

    With engines that change the parameters themselves (asynchronous parameter servers), gradients stay those of the
    rank until ``optimizer.step()``, which sends them, and sets the parameters to what the servers answer.

    Args:
        model: the module; all ranks begin with the parameters and buffers of rank 0.
        comm: a communicator of all ranks; the engine makes its own ones from it.
        engine: name of an engine: see `gradient_engines`.
        optimizer: optimizer of the model's parameters; only engines that change the parameters need it. Others check
            that it has no parameters but the model's.
        exact: add the ranks' gradients in the order of ranks, each rounded to its type.
        timeout: timeout of every wait, in seconds; None: that of the communicator.
        options: options of the engine, such as ``num_servers=2``.

    Attributes:
        engine: the engine.

    Raises:
        InvalidType: `model` is not a module, or `optimizer` no optimizer.
        InvalidModel: no parameter requires a gradient; an embedding has sparse gradients, which no engine sums; a
            parameter has no values on this rank, or not all of them; or a part of the model exchanges gradients itself,
            as DistributedDataParallel does.
        InvalidState: the model has an exchange that is not closed, or `torch.inference_mode` is on.
        InvalidArgument: there is no such engine or option; ranks differ in engine, options, parameters, buffers or
            settings, groups or state of the optimizer; or the optimizer cannot be on servers, or has other parameters.
            Raised before anything is sent but this.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with hk.train.GradientExchange(model, comm, engine="ring"):
        ...     model(torch.full((1, 2), float(comm.rank))).sum().backward()
        >>> model.weight.grad.tolist()  # the mean of 0 and 1
        [[0.5, 0.5]]
    """

    def __init__(
        self,
        model: nn.Module,
        comm: Communicator,
        engine: str = DEFAULT,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        exact: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(comm, Communicator):
            raise InvalidType(f"comm must be a communicator, such as that of hk.init(), not {type(comm).__name__}")
        if type(exact) is not bool:
            raise InvalidType(f"exact must be True or False, not {exact!r}")
        choice = EngineChoice(engine, options)
        choice.check(exact=exact)
        timeout_s = comm.timeout if timeout is None else timeout
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < float("inf"):
            raise InvalidArgument(f"timeout must be a number of seconds above zero, not {timeout!r}")
        trained = TrainedParameters(model)
        named = trained.named
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidType(f"optimizer must be a torch optimizer, not {type(optimizer).__name__}")
        settings: dict[str, Any] = {}
        if choice.updates:
            if optimizer is None:
                raise InvalidArgument(f"engine {engine!r} changes the parameters itself: pass optimizer=")
            settings = _settings(optimizer, named)
        elif optimizer is not None:
            _check_has_no_others(optimizer, named)
        _check_has_no_exchange(named, optimizer if choice.updates else None)
        tensors = [TensorSpec(name, tuple(each.shape), each.dtype) for name, each in named.items()]
        others = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        check_alike(
            comm,
            engine=engine,
            exact=exact,
            options=options,
            parameters=tensors,
            buffers=[(name, tuple(each.shape), each.dtype) for name, each in others.items() if name not in named],
            **settings,
        )
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                comm.broadcast(tensor.detach(), 0)
        parameters = list(named.values())
        self._form: _Means | _Updates
        if choice.updates:
            assert optimizer is not None
            updating = choice.make_updating(comm, tensors, parameters, optimizer, timeout_s=timeout_s)
            self._form = _Updates(updating, parameters, optimizer)
            self.engine: GradientEngine = updating
        else:
            exist = TensorSpec(EXIST, (len(tensors),), torch.float32)
            summing = choice.make(comm, [*tensors, exist], exact=exact, timeout_s=timeout_s)
            self._form = _Means(summing, trained, comm.size)
            self.engine = summing

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the context, backward passes add to this rank's gradients only; the next one after it sends them."""
        before, self._form.is_on = self._form.is_on, False
        try:
            yield
        finally:
            self._form.is_on = before

    def close(self) -> None:
        """Close the engine; parameters keep their gradients, and further ones stay on this rank. Idempotent.

        With an engine that changes the parameters, all ranks then have the servers' last ones.
        """
        self._remove_hooks()
        self.engine.close()

    def __enter__(self) -> GradientExchange:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # the other ranks may be anywhere
            self._remove_hooks()
            self.engine.abandon()
        self.close()

    def _remove_hooks(self) -> None:
        for each in self._form.hooks:
            each.remove()
        self._form.hooks.clear()


def _settings(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> dict[str, Any]:
    """Return what must be equal on all ranks of an optimizer that is to be on servers.

    Raises:
        InvalidArgument: it cannot be there.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgument(
            f"{type(optimizer).__name__} needs a closure that computes the loss again within a step, which servers "
            "cannot do: use another optimizer, or an engine that sums"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise InvalidArgument("SparseAdam takes sparse gradients only, which no engine exchanges: use Adam")
    served = TorchServedOptimizer(optimizer)
    served.check(list(named.values()))
    names = {id(each): name for name, each in named.items()}
    return {
        "optimizer": type(optimizer).__name__,
        "settings_of_the_optimizer": served.group_settings(),
        "groups_of_the_optimizer": [[names[id(each)] for each in group["params"]] for group in optimizer.param_groups],
        # The state of a parameter comes to its server from the rank that starts the server.
        "state_of_the_optimizer": {
            names[id(parameter)]: {name: _digest(value) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        },
    }


def _digest(value: Any) -> str:
    """Return a text that is equal for equal values of an optimizer's state."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} {sha256(content).hexdigest()[:16]}"


def _check_has_no_others(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> None:
    """Check that an optimizer trains nothing whose gradients would stay those of each rank."""
    own = {id(each) for each in named.values()}
    others = [
        tuple(each.shape)
        for group in optimizer.param_groups
        for each in group["params"]
        if each.requires_grad and id(each) not in own
    ]
    if others:
        raise InvalidArgument(
            f"{type(optimizer).__name__} has {len(others)} parameters that are not the model's, the first of shape "
            f"{others[0]}: their gradients would not be summed"
        )


def _check_has_no_exchange(named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
    """Check that no other exchange is under way, which would work on the same gradients at the same time."""
    hooks: list[Any] = [*getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()]
    for each in named.values():
        hooks += (getattr(each, "_post_accumulate_grad_hooks", None) or {}).values()
    if any(isinstance(getattr(getattr(each, "func", each), "__self__", None), (_Means, _Updates)) for each in hooks):
        raise InvalidState("the model has an exchange of gradients that is not closed: close it before")


class _Means:
    """Hooks of autograd: the engine sums each gradient as soon as the backward pass has computed it."""

    def __init__(self, engine: SummingEngine, trained: TrainedParameters, num_ranks: int) -> None:
        parameters = list(trained.named.values())
        self._engine, self._trained, self._parameters, self._num_ranks = engine, trained, parameters, num_ranks
        self._exist = torch.zeros(len(parameters), dtype=torch.float32, device="cpu")  # whatever torch's defaults are
        self._started: dict[int, torch.Tensor] = {}
        self._divided: set[int] = set()
        """Those that were divided before the sum."""
        self._backward: int | None = None
        """Autograd's number of the backward pass under way."""
        self._failure: str | None = None
        self.is_on = True
        self.hooks: list[Any] = [
            each.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, each in enumerate(parameters)
        ]

    def _take(self, number: int, parameter: nn.Parameter) -> None:
        """Start to sum a gradient that the backward pass has completed."""
        if not self.is_on:
            return
        if self._failure is not None:
            raise InvalidState(f"the engine cannot be used any longer: {self._failure}")
        this = torch._C._current_graph_task_id()
        if self._backward is None:
            self._backward = this
            torch.autograd.Variable._execution_engine.queue_callback(self._complete)
        elif self._backward != this or number in self._started:
            self._failure = "an earlier backward pass failed, or computed a gradient twice (reentrant checkpoints do)"
            raise InvalidState(f"the engine cannot be used any longer: {self._failure}")
        self._start(number, parameter.grad)

    def _start(self, number: int, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            gradient = torch.zeros_like(self._parameters[number], memory_format=torch.contiguous_format)
        else:
            check_gradient(self._engine.tensors[number].name, self._parameters[number], gradient)
        self._started[number] = gradient.detach().contiguous()
        if gradient.dtype == torch.float16 and not self._engine.exact:
            # As DistributedDataParallel does: sums of halves overflow where their mean does not.
            self._started[number].div_(self._num_ranks)
            self._divided.add(number)
        self._engine.start(number, self._started[number])

    def _complete(self) -> None:
        """Start what the backward pass did not compute, at its end.

        The wait is a callback of its own: of several exchanges in one backward pass each has then started everything
        before one of them waits, so that ranks may compute their gradients in different orders.
        """
        self._failure = "a step has failed"
        self._trained.check_unchanged()
        self._exist.copy_(torch.tensor([float(each.grad is not None) for each in self._parameters]))
        for number, parameter in enumerate(self._parameters):
            if number not in self._started:
                self._start(number, parameter.grad)
        self._engine.start(len(self._parameters), self._exist)
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """Wait for the sums, and set all gradients."""
        self._engine.finish()
        if sums := [each for number, each in self._started.items() if number not in self._divided]:
            torch._foreach_div_(sums, self._num_ranks)
        self._divided.clear()
        for number, gradient in self._started.items():
            parameter = self._parameters[number]
            if not self._exist[number]:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = gradient
            elif parameter.grad.data_ptr() != gradient.data_ptr():
                parameter.grad.copy_(gradient)
        self._started.clear()
        self._backward = self._failure = None


class _Updates:
    """Hooks of an optimizer: a step sends the gradients, and changes the parameters to what comes back."""

    def __init__(
        self, engine: UpdatingEngine, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        self._engine, self._parameters = engine, parameters
        self._num_groups = len(optimizer.param_groups)
        self._kept: list[torch.Tensor | None] = []
        self.is_on = True
        self.hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._exchange), optimizer.register_step_post_hook(self._put_back)
        ]  # fmt: skip

    def _exchange(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        check_step(optimizer, self._num_groups, args, kwargs)
        for spec, each in zip(self._engine.tensors, self._parameters, strict=True):
            if each.grad is not None:
                check_gradient(spec.name, each, each.grad)
        self._kept = [each.grad for each in self._parameters]
        self._engine.exchange(self._kept)
        for each in self._parameters:
            each.grad = None  # optimizers leave those alone

    def _put_back(self, *_: object) -> None:
        for parameter, gradient in zip(self._parameters, self._kept, strict=True):
            parameter.grad = gradient
        self._kept = []
