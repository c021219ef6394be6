"""help() and inspect.signature() of the native operations agree with the stubs and with the calls."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from hocket import _native, comm
from hocket.comm import Communicator

STUBS = ast.parse(Path(comm.__file__).parents[1].joinpath("_native.pyi").read_text())
COLLECTIVE = ("backend", "algorithm", "async_op", "deps", "timeout")
OPERATIONS = [
    *(name for name in _native.OP_NAMES if name not in ("split", "dup", "group")),
    *("all_reduce_coalesced", "broadcast_coalesced", "isend", "irecv", "sendrecv"),
]


def in_stubs(name: str) -> tuple[list[str], list[str]]:
    """Names of an operation's positional arguments, and of its keyword-only arguments."""
    (body,) = (node.body for node in STUBS.body if isinstance(node, ast.ClassDef) and node.name == "Communicator")
    function = next(each for each in body if isinstance(each, ast.FunctionDef) and each.name == name)
    arguments = function.args
    keywords = [each.arg for each in arguments.kwonlyargs]
    return [each.arg for each in arguments.args], [*keywords, *(COLLECTIVE if arguments.kwarg else ())]


@pytest.mark.parametrize("name", OPERATIONS)
def test_signatures_are_those_of_the_stubs(name: str) -> None:
    parameters = inspect.signature(getattr(Communicator, name)).parameters
    by_kind = {
        kind: [each.name for each in parameters.values() if each.kind is kind] for kind in inspect._ParameterKind
    }
    positional = by_kind[inspect.Parameter.POSITIONAL_ONLY] + by_kind[inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert (positional, by_kind[inspect.Parameter.KEYWORD_ONLY]) == in_stubs(name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_docstrings_name_every_argument_and_what_is_raised(name: str) -> None:
    doc = inspect.getdoc(getattr(Communicator, name))
    assert doc is not None and "Raises:" in doc
    described = doc.partition("Args:")[2].partition("Raises:")[0]
    for argument in (*in_stubs(name)[0][1:], *in_stubs(name)[1]):
        assert argument in described, argument
