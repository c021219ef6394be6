"""The registry of gradient engines, by the name of their file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

import hocket.train.engines as folder
from hocket.comm import Communicator
from hocket.discovery import declared
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import did_you_mean, unknown
from hocket.train.engines.engine import GradientEngine, SummingEngine, TensorSpec, UpdatingEngine
from hocket.train.engines.servers.optimizers import ServedOptimizer

_HELPERS = (
    "adding",
    "buckets",
    "engine",
    "exchange",
    "in_order",
    "ordered_sums",
    "registry",
    "servers",
    "timing",
    "trained",
    "updating_servers",
    "virtual_step",
    "watch",
)
DEFAULT = "mix"
_COMMON = ("comm", "tensors", "exact", "timeout_s", "parameters", "optimizer")


@lru_cache
def _load() -> dict[str, type[GradientEngine]]:
    found = declared(folder, "ENGINE", "a subclass of SummingEngine or UpdatingEngine", _is_engine, _HELPERS)
    return {module.__name__.rpartition(".")[2].replace("_", "-"): engine for module, engine in found}


def _is_engine(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, (SummingEngine, UpdatingEngine))


def gradient_engines() -> dict[str, type[GradientEngine]]:
    """Return all gradient engines by name.

    Examples:
        >>> print(*sorted(hk.train.gradient_engines()))
        compressed ddp fused mix parameter-server parameter-server-async parameter-server-backup pipelined-ring ring
    """
    return dict(_load())


@dataclass(frozen=True)
class EngineChoice:
    """A gradient engine by name, with options.

    Args:
        name: see `gradient_engines`.
        options: of the engine, such as {"num_servers": 2}.

    Examples:
        >>> choice = hk.train.EngineChoice("parameter-server", {"num_servers": 2})
        >>> choice.updates, hk.train.EngineChoice("parameter-server-async").updates
        (False, True)
    """

    name: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.options, Mapping):  # a copy that can be compared and pickled; `check` refuses the others
            object.__setattr__(self, "options", dict(self.options))

    def check(self, *, exact: bool) -> type[GradientEngine]:
        """Return the class of the engine.

        Args:
            exact: whether sums must be in the order of ranks.

        Raises:
            InvalidArgument: there is no such engine; it has no such option, or it cannot have such a value; or its sums
                have no order.
            InvalidType: the name is not a text, or the options are not a mapping.
        """
        if not isinstance(self.name, str):
            raise InvalidType(f"engine must be the name of a gradient engine, not {type(self.name).__name__}")
        if not isinstance(self.options, Mapping):
            what = type(self.options).__name__
            raise InvalidType(f'the options of an engine must be a mapping, such as {{"num_servers": 2}}, not {what}')
        name, _, options = self.name.partition(" ")
        if name in _load() and options:
            raise InvalidArgument(
                f"engine {self.name!r} has options in its name: give the name {name!r}, and the options by themselves "
                f"(engine_options= in fit, keyword arguments of GradientExchange)"
            )
        if self.name not in _load():
            raise InvalidArgument(unknown("gradient engine", self.name, sorted(_load())))
        engine = _load()[self.name]
        defaults = {
            name: each.default for name, each in inspect.signature(engine).parameters.items() if name not in _COMMON
        }
        known = list(defaults)
        for option in self.options:
            if option not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise InvalidArgument(
                    f"engine {self.name!r} has no option {option!r}; {has}{did_you_mean(option, known)}"
                )
        try:
            engine.check_options({**defaults, **self.options})
        except InvalidArgument as error:
            raise InvalidArgument(f"engine {self.name!r}: {error}") from None
        if exact and not engine.has_order:
            ordered = sorted(each for each, other in _load().items() if other.has_order)
            raise InvalidArgument(
                f"engine {self.name!r} adds parts of a tensor in different orders, so exact=True is not possible with "
                f"it; these engines add in the order of ranks: {', '.join(ordered)}"
            )
        return engine

    @classmethod
    def of(cls, engine: Any, options: Any, gradients: Any, *, is_scaled: bool = False) -> EngineChoice:
        """Return the choice of someone who names an engine with options, or how gradients are compressed.

        Args:
            engine: name of an engine; the default one if `gradients` is given.
            options: of the engine; None: those that it has by default.
            gradients: a compressor or its text; None: gradients are summed as they are.
            is_scaled: whether steps with infinite gradients are skipped, so that a sum must let them through.

        Raises:
            InvalidArgument: both are given.
        """
        if gradients is None:
            return cls(engine, {} if options is None else options)
        if engine != DEFAULT or options:
            both = f"engine={engine!r}" if engine != DEFAULT else f"engine_options={options!r}"
            raise InvalidArgument(
                f"{both} and gradients={gradients!r} cannot be given together: write engine='compressed', "
                f"engine_options={{'compressor': {gradients!r}, ...}} to compress with options"
            )
        return cls("compressed", {"compressor": gradients, "nonfinite": "pass" if is_scaled else "raise"})

    def check_is_default(self, why: str) -> None:
        """Check that no other engine than the default is chosen.

        Raises:
            InvalidArgument: one is; the message says why it cannot be.
        """
        if self != EngineChoice():
            raise InvalidArgument(f"engine {self.name!r} is not possible together with {why}: leave it out")

    @property
    def updates(self) -> bool:
        """Whether the engine changes the parameters itself (`UpdatingEngine`)."""
        return issubclass(_load()[self.name], UpdatingEngine)

    def make(
        self, comm: Communicator, tensors: Sequence[TensorSpec], *, exact: bool, timeout_s: float
    ) -> SummingEngine:
        """Make an engine that sums; called by all ranks.

        Raises:
            InvalidArgument: see `check`, and the engine itself.
        """
        engine = self.check(exact=exact)
        assert issubclass(engine, SummingEngine)
        return engine(comm, tensors, exact=exact, timeout_s=timeout_s, **self.options)

    def make_updating(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | ServedOptimizer,
        *,
        timeout_s: float,
    ) -> UpdatingEngine:
        """Make an engine that changes the parameters; called by all ranks.

        Raises:
            InvalidArgument: see `check`, and the engine itself.
        """
        engine: Any = self.check(exact=False)
        made: UpdatingEngine = engine(
            comm, tensors, parameters=parameters, optimizer=optimizer, timeout_s=timeout_s, **self.options
        )
        return made
