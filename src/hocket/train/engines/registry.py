"""The registry of gradient engines, by the name of their file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import hocket.train.engines as folder
from hocket.comm import Communicator
from hocket.discovery import declared
from hocket.errors import InvalidArgument
from hocket.suggestions import did_you_mean, unknown
from hocket.train.engines.engine import GradientEngine, TensorSpec

_HELPERS = ("buckets", "engine", "exchange", "in_order", "ordered_sums", "registry", "servers", "watch")
_COMMON = ("comm", "tensors", "exact", "timeout_s")


@lru_cache
def _load() -> dict[str, type[GradientEngine]]:
    found = declared(folder, "ENGINE", "a subclass of GradientEngine", _is_engine, _HELPERS)
    return {module.__name__.rpartition(".")[2].replace("_", "-"): engine for module, engine in found}


def _is_engine(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, GradientEngine)


def engines() -> dict[str, type[GradientEngine]]:
    """Return all gradient engines by name.

    Examples:
        >>> sorted(hk.train.engines())
        ['ddp', 'fused', 'mix', 'parameter-server', 'ring']
    """
    return dict(_load())


def check_engine(name: str, options: Mapping[str, Any], *, exact: bool) -> type[GradientEngine]:
    """Return an engine by its name, after a check that it has the options.

    Raises:
        InvalidArgument: there is no such engine; it has no such option; or its sums have no order, and `exact` is set.
    """
    if name not in _load():
        raise InvalidArgument(unknown("gradient engine", name, sorted(_load())))
    engine = _load()[name]
    known = [each for each in inspect.signature(engine).parameters if each not in _COMMON]
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidArgument(f"engine {name!r} has no option {option!r}; {has}{did_you_mean(option, known)}")
    if exact and not engine.has_order:
        ordered = sorted(each for each, other in _load().items() if other.has_order)
        raise InvalidArgument(
            f"engine {name!r} adds parts of a tensor in different orders, so exact=True is not possible with it; these "
            f"engines add in the order of ranks: {', '.join(ordered)}"
        )
    return engine


def make_engine(
    name: str,
    comm: Communicator,
    tensors: Sequence[TensorSpec],
    options: Mapping[str, Any],
    *,
    exact: bool,
    timeout_s: float,
) -> GradientEngine:
    """Make an engine by its name; called by all ranks.

    Raises:
        InvalidArgument: see `check_engine`.
    """
    engine = check_engine(name, options, exact=exact)
    return engine(comm, tensors, exact=exact, timeout_s=timeout_s, **options)
