"""A gradient engine under a training loop of one's own: after `backward`, gradients are means over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from hocket.comm import Communicator
from hocket.errors import InvalidModel, InvalidState, InvalidType
from hocket.train.checks import check_alike
from hocket.train.engines.engine import TensorSpec
from hocket.train.engines.registry import DEFAULT, EngineChoice


class GradientExchange:
    """Gives the trained parameters of a model gradients that are means over all ranks.

    All ranks make it with equal models, and train them on data of their own; the loop itself does not change. After
    ``loss.backward()``, every ``.grad`` is the mean over all ranks, as with torch's DistributedDataParallel. So
    clipping, scalers of gradients and every optimizer work as in one process. A parameter that no rank's loss depends
    on has no gradient; if some ranks' do, the others count as 0.

    Args:
        model: the module; all ranks begin with the parameters and buffers of rank 0.
        comm: a communicator of all ranks; the engine makes its own ones from it.
        engine: name of an engine: see `gradient_engines`.
        exact: add the ranks' gradients in the order of ranks, each rounded to its type.
        timeout: timeout of every wait, in seconds; None: that of the communicator.
        options: options of the engine, such as ``num_servers=2``.

    Raises:
        InvalidType: `model` is not a module.
        InvalidModel: no parameter requires a gradient, or an embedding has sparse gradients, which no engine sums.
        InvalidArgument: there is no such engine or option, or ranks differ in engine, options or parameters; raised
            before anything is sent but this.

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
        exact: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(f"model must be a torch.nn.Module, not {type(model).__name__}")
        choice = EngineChoice(engine, options)
        choice.check(exact=exact)
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not named:
            raise InvalidModel(f"no parameter of {type(model).__name__} requires a gradient: set requires_grad = True")
        for name, module in model.named_modules():
            if getattr(module, "sparse", False) is True:
                raise InvalidModel(
                    f"{name or type(module).__name__} has sparse gradients, which no engine sums: pass sparse=False"
                )
        self._parameters = list(named.values())
        tensors = [TensorSpec(name, tuple(each.shape), each.dtype) for name, each in named.items()]
        check_alike(comm, engine=engine, exact=exact, options=options, parameters=tensors)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                comm.broadcast(tensor.detach(), 0)
        self._num_ranks = comm.size
        self._exist = torch.zeros(len(tensors))
        exist = TensorSpec("whether there are gradients", (len(tensors),), torch.float32)
        timeout_s = comm.timeout if timeout is None else timeout
        self.engine = choice.make(comm, [*tensors, exist], exact=exact, timeout_s=timeout_s)
        self._started: dict[int, torch.Tensor] = {}
        self._backward: int | None = None
        """Of the backward pass under way, autograd's number."""
        self._is_on = True
        self._failure: str | None = None
        self._hooks = [
            each.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, each in enumerate(self._parameters)
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the context, backward passes add to this rank's gradients only; the next one after it sends them."""
        self._is_on, before = False, self._is_on
        try:
            yield
        finally:
            self._is_on = before

    def close(self) -> None:
        """Close the engine; parameters keep their gradients, and further ones stay on this rank. Idempotent."""
        for each in self._hooks:
            each.remove()
        self._hooks.clear()
        self.engine.close()

    def __enter__(self) -> GradientExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, number: int, parameter: nn.Parameter) -> None:
        """Start to sum a gradient that the backward pass has completed."""
        if not self._is_on:
            return
        if self._failure is not None:
            raise InvalidState(f"the engine cannot be used any longer: {self._failure}")
        this = torch._C._current_graph_task_id()
        if self._backward is None:
            self._backward = this
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        elif self._backward != this or number in self._started:
            self._failure = "an earlier backward pass failed, or computed a gradient twice (reentrant checkpoints do)"
            raise InvalidState(f"the engine cannot be used any longer: {self._failure}")
        self._start(number, parameter.grad)

    def _start(self, number: int, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            gradient = torch.zeros_like(self._parameters[number], memory_format=torch.contiguous_format)
        elif gradient.layout != torch.strided:
            raise InvalidModel(
                f"the gradient of {self.engine.tensors[number].name} is sparse, and no engine sums those"
            )
        self._started[number] = gradient.contiguous()
        self.engine.start(number, self._started[number])

    def _finish(self) -> None:
        """Wait for the sums, at the end of a backward pass, and set all gradients."""
        self._failure = "a step has failed"
        count = len(self._parameters)
        self._exist.copy_(
            torch.tensor(
                [float(number in self._started or self._parameters[number].grad is not None) for number in range(count)]
            )
        )
        for number in range(count):
            if number not in self._started:
                self._start(number, self._parameters[number].grad)
        self.engine.start(count, self._exist)
        self.engine.finish()
        torch._foreach_div_(list(self._started.values()), self._num_ranks)
        for number, gradient in self._started.items():
            parameter = self._parameters[number]
            if not self._exist[number]:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = gradient
            elif parameter.grad is not gradient:
                parameter.grad.copy_(gradient)
        self._started.clear()
        self._backward = self._failure = None
