"""Checks of the values of engines' options, and of libraries, before ranks start."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument
from hocket.suggestions import unknown

if TYPE_CHECKING:
    from hocket.train import EngineChoice, TensorSpec


def check_libraries(names: Sequence[str]) -> None:
    """Check that libraries exist, and can be used on this host.

    Raises:
        InvalidArgument: one does not, or cannot; says why.
    """
    from hocket.backends import backends_among, find_backends

    known = find_backends()
    for part in (part for each in names for part in each.split("+")):
        if part != "shm" and part not in known:
            usable = ["shm", *(name for name, adapter in known.items() if adapter.find_obstacle() is None)]
            raise InvalidArgument(unknown("library", part, usable))
    adapters = backends_among(names)
    for name in sorted({part for each in names for part in (each, *each.split("+"))} & {*adapters}):
        if reason := adapters[name].find_obstacle():
            raise InvalidArgument(f"library {name!r} is not available: {reason}")


def check_values(choice: EngineChoice, libraries: Sequence[str] | None = None) -> None:
    """Check the values of an engine's options, as far as one process can.

    Args:
        choice: an engine whose options exist.
        libraries: the communicator's libraries; None: the default ones.

    Raises:
        InvalidArgument: a value is of another type, or out of range; or a library is not among `libraries`.
    """
    options = all_options(choice)  # this checks the engine's own values
    try:
        _check_library("backend", options.get("backend"), libraries)
        if options.get("payload") not in ("grpc", "shm"):  # what `parameter-server` has beside libraries
            _check_library("payload", options.get("payload"), libraries)
    except InvalidArgument as error:
        raise InvalidArgument(f"engine {choice.name!r}: {error}") from None


def check_servers(choices: Iterable[EngineChoice], models: Mapping[str, Sequence[TensorSpec]]) -> None:
    """Check that models have tensors for all servers, and that no two servers of a measurement have the same port.

    Args:
        choices: engines with checked values, which all exist at the same time for each model.
        models: the gradients of each model, by name.

    Raises:
        InvalidArgument: a model has too few tensors, or a port is used twice.
    """
    from hocket.train.engines.servers.shards import assign

    ports: Counter[int] = Counter()
    for options in map(all_options, choices):
        for model, tensors in models.items() if "num_servers" in options else ():
            try:
                assign(tensors, options["num_servers"])
            except InvalidArgument as error:
                raise InvalidArgument(f"{model}: {error}") from None
        ports.update(tuple(options.get("ports", ())) * len(models))
    if twice := [port for port, count in ports.items() if count > 1]:
        raise InvalidArgument(
            f"port {twice[0]} is needed twice, since the servers of all engines and models run at the same time: "
            "give a single --model, and each engine ports of its own"
        )


def all_options(choice: EngineChoice) -> dict[str, Any]:
    """Return the options of an engine, with the defaults of those that are not given."""
    parameters = inspect.signature(choice.check(exact=False)).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not inspect.Parameter.empty}
    return {**defaults, **choice.options}


def _check_library(option: str, name: Any, libraries: Sequence[str] | None) -> None:
    from hocket.backends import backends_among, find_backends

    if name is None:
        return
    if libraries is None and (setting := os.environ.get("HOCKET_BACKENDS")):
        libraries = setting.split(",")
    known: Collection[str]
    if libraries is None:
        known = ["shm", *backends_among(None)]
    else:
        known = list(dict.fromkeys(["shm", *(part for each in libraries for part in (each, *each.split("+")))]))
    if name not in known:
        if name in find_backends():
            check_libraries([name])
            where = "HOCKET_BACKENDS" if libraries is None else "--library or HOCKET_BACKENDS"
            raise InvalidArgument(
                f"{option}={name}: {name} is not started beside {', '.join(known)}: name it in {where}"
            )
        known = ["grpc", *known] if option == "payload" else known
        raise InvalidArgument(f"{option}={name}: {unknown('library', name, known)}")
    if libraries is None:
        check_libraries([name])
