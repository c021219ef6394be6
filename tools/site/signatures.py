"""An extension of griffe, which reads the sources for the reference: what it cannot see by itself."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

# "    low, high: text" of a docstring, and the lines of that text
_SEVERAL_NAMES = re.compile(r"^( {4})(\w+(?:, \w+)+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


class Signatures(griffe.Extension):
    """Completes what griffe found in the sources and in the native module."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Change the whole package, once it is read."""
        if "torch" in pkg.members:
            _add_made_functions(pkg["torch.dist"])
        for owner in _classes(pkg):
            _bind_functions(owner)
        for each in _documented(pkg):
            each.docstring.value = _SEVERAL_NAMES.sub(_one_a_name, each.docstring.value)
        if "_native" in pkg.members:
            path = pkg.filepath.parent / "_native.pyi"
            stubs = griffe.visit("_native", filepath=path, code=path.read_text())
            for each in pkg["_native"].classes.values():
                for name, method in each.functions.items():
                    _drop_signature(method)
                    if not name.startswith("_") and len(method.parameters) == 0:  # not in a form that griffe reads
                        method.parameters = stubs[each.name].functions[name].parameters
                    _name_options(method, stubs["Options"].attributes)
        for module in list(_modules(pkg)):
            _prefer_names(module)


def _prefer_names(module: griffe.Module) -> None:
    """Show ``judge`` of ``judge.py`` where a room names both: at run time that is the function."""
    for name in map(str, module.exports or ()):
        inner = module.members.get(name)
        if inner is not None and not inner.is_alias and inner.is_module and name in inner.members:
            module.members[name] = griffe.Alias(name, inner.members[name], parent=module)


def _add_made_functions(module: griffe.Module) -> None:
    """Add the functions that a module makes when it is imported, as torch.distributed's with ``backend=``.

    Of their docstrings the first paragraph and the examples: the rest is torch's own page.
    """
    made = importlib.import_module(module.path)
    for name in made.__all__:
        value = getattr(made, name)
        if name in module.members or not callable(value):
            continue
        parameters = [
            griffe.Parameter(
                each.name,
                annotation=None if each.annotation is each.empty else inspect.formatannotation(each.annotation),
                kind=griffe.ParameterKind(each.kind.description),
                default=None if each.default is each.empty else repr(each.default),
            )
            for each in inspect.signature(value).parameters.values()
        ]
        first, _, rest = (inspect.getdoc(value) or "").partition("\n\n")
        examples = rest[rest.rfind("Examples:\n") :]
        docstring = griffe.Docstring(f"{first}\n\n{examples}", parser="google")
        function = griffe.Function(name, parameters=griffe.Parameters(*parameters), docstring=docstring)
        docstring.parent = function
        module.set_member(name, function)
    module.exports = list(made.__all__)


def _bind_functions(owner: griffe.Class) -> None:
    """Show functions of other files as methods of the class that binds them (``send_object = objects.send_object``)."""
    for name, attribute in list(owner.attributes.items()):
        value = attribute.value
        if attribute.docstring is not None or not isinstance(value, griffe.ExprName | griffe.ExprAttribute):
            continue
        try:
            function = owner.modules_collection[value.canonical_path]
            function = function.final_target if function.is_alias else function
        except (KeyError, griffe.AliasResolutionError):
            continue
        if function.is_function:
            method = copy.copy(function)
            method.name, method.parent = name, owner
            if function.docstring is not None:
                method.docstring = copy.copy(function.docstring)
                method.docstring.parent = method
            owner.set_member(name, method)


def _one_a_name(found: re.Match[str]) -> str:
    """Give each of several parameters that share a text an entry of its own."""
    first, *others = found[2].split(", ")
    return f"{found[1]}{first}: {found[3]}" + "".join(f"\n{found[1]}{name}: As `{first}`." for name in others)


def _drop_signature(method: griffe.Function) -> None:
    """Remove the signature that nanobind writes into the first line of a docstring."""
    if method.docstring is not None:
        method.docstring.value = re.sub(rf"\A{method.name}\(.*\).*\n*", "", method.docstring.value)


def _name_options(method: griffe.Function, options: dict[str, griffe.Attribute]) -> None:
    """Show a collective by one signature: its overloads differ by `async_op` alone."""
    if not method.overloads:
        return
    method.returns = "Work | None"
    method.overloads = []
    for parameter in method.parameters:
        if parameter.annotation is None and parameter.name in options:
            parameter.annotation = options[parameter.name].annotation
        elif parameter.name == "async_op":
            parameter.annotation = "bool"


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for each in module.modules.values():
        if not each.is_alias:
            yield from _modules(each)


def _classes(package: griffe.Module) -> Iterator[griffe.Class]:
    for module in _modules(package):
        yield from (each for each in module.classes.values() if not each.is_alias)


def _documented(package: griffe.Module) -> Iterator[Any]:
    for module in _modules(package):
        for owner in (module, *(each for each in module.classes.values() if not each.is_alias)):
            for each in (owner, *owner.members.values()):
                if not each.is_alias and each.docstring is not None:
                    yield each
