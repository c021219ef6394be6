"""Generate docs/api.md from the docstrings: python tools/api_reference.py [PATH]. A test compares the page."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
HEAD = """# API reference

Made from the docstrings by `tools/api_reference.py`. The pages on [the communicator](communicator.md),
[mixing](mixing.md), [torch](torch.md), [starting jobs](launch.md) and [measuring](measure.md) say what for, with
examples.
"""
# Keyword arguments of all collectives; the stubs repeat them in overloads.
KEYWORDS = "backend: str | None = None, async_op: bool = False, deps: Sequence[Work] = (), timeout: float | None = None"
WITHOUT_CONSTRUCTOR = ("hocket.Communicator", "hocket.Work", "hocket.memory.MemoryDriver", "hocket.Policy")
MODULES = {
    "hocket.collectives": [
        *("algorithms", "find_algorithm", "Algorithm", "algorithm"),
        *("make_schedule", "Transfers", "Schedule", "verify"),
    ],
    "hocket.collectives.simulate": ["simulate", "Simulation"],
    "hocket.sim": ["Link", "Uniform", "Hosts", "TaskGraph", "Timeline"],
    "hocket.pipeline": [
        *("build", "recipes", "Recipe", "recipe", "PipelineSchedule", "Action", "Placement", "bidirectional", "zigzag"),
        *("load_schedule", "save_schedule", "validate", "smallest_buffering", "Buffering", "CostModel", "simulate"),
        *("PipelineTimeline", "draw_timelines", "draw_text", "write_trace", "lower_bound_s", "list_schedule", "Rule"),
        *("split_backward", "merge_backward", "lower_messages", "add_gradient_sync", "recompute", "concatenate"),
        *("retime", "fill_bubbles", "FillReport", "register_kind", "Kind", "Need", "Stash"),
        *("ModelCosts", "choose", "Candidate", "predict_step_s", "bottleneck_partition"),
    ],
    "hocket.train": [
        *(
            "fit",
            "graph_of",
            "graph_of_exported",
            "LayerGraph",
            "Layer",
            "SplitModel",
            "Stage",
            "ModuleStage",
            "PipelineExecutor",
            "MicroBatch",
        ),
        *("StepResult", "Trainer", "TorchUpdate", "run_epochs", "History", "Callback", "Checkpoint", "EarlyStopping"),
        *(
            "LearningRate",
            "source_of",
            "Batch",
            "SetupRequest",
            "choose_setup",
            "TrainingSetup",
            "Arrangement",
            "arrange",
            "executes",
        ),
        *("profile_layers", "profile_stages", "StageCosts", "costs_of_stages", "balance_by_time", "measure_link"),
        *("compare_with_simulation", "random_key", "TrainerView", "train_graph", "TrainingRequest", "TrainingData"),
    ],
    "hocket.keras": ["fit", "graph_of_keras"],
    "hocket.tune": ["Learner", "TablePolicy", "ModelPolicy", "load_table", "save_table", "Table", "Row"],
    "hocket.torch": ["communicator", "Options"],
    "hocket.torch.dist": ["init_process_group", "monitored_barrier"],
    "hocket.memory": ["use_driver", "forget", "counters", "MemoryDriver", "PointerCacheCounters"],
    "hocket.measure": ["Contender", "Settings", "Team", "measure", "Measurement", "Comparison", "judge", "Row"],
}


def page() -> str:
    import hocket

    lines = [HEAD, "## hocket\n"]
    names = [name for name in hocket.__all__ if not name.startswith("_")]
    objects = {name: getattr(hocket, name) for name in names}
    functions = {name: each for name, each in objects.items() if not inspect.isclass(each)}
    errors = {name: each for name, each in objects.items() if inspect.isclass(each) and issubclass(each, Exception)}
    classes = {name: each for name, each in objects.items() if name not in functions and name not in errors}
    for name, each in functions.items():
        lines += entry(f"hocket.{name}", each, "###")
    for name, each in classes.items():
        lines += class_entry(f"hocket.{name}", each)
    lines += ["## Errors\n", "| class | also a | when |", "|---|---|---|"]
    for name, each in sorted(errors.items()):
        also = ", ".join(base.__name__ for base in each.__mro__[1:] if base.__module__ == "builtins")
        also = also.split(", Exception")[0].replace("Exception, BaseException, object", "Exception")
        lines.append(f"| `{name}` | {also} | {first_paragraph(each)} |")
    lines.append("")
    for module, names in MODULES.items():
        lines += [f"## {module}\n"]
        for name in names:
            each = getattr(importlib.import_module(module), name)
            lines += class_entry(f"{module}.{name}", each) if inspect.isclass(each) else entry(
                f"{module}.{name}", each, "###"
            )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def class_entry(name: str, each: type) -> list[str]:
    lines = entry(name, each, "###")
    for method, value in members(each):
        lines += entry(f"{name.rpartition('.')[2]}.{method}", value, "####")
    return lines


def members(each: type) -> Iterator[tuple[str, Any]]:
    seen = {}
    for base in reversed(each.__mro__[:-1]):
        if base.__module__.startswith("hocket") and not issubclass(each, Exception):
            seen |= {
                name: value for name, value in vars(base).items() if not name.startswith("_") and hasattr(each, name)
            }
    for name, value in seen.items():
        documented = value.fget if isinstance(value, property) else value
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if callable(documented) or isinstance(value, property) or inspect.isroutine(value):
            yield name, value


def entry(name: str, each: Any, level: str) -> list[str]:
    lines = [f"{level} {name}\n"]
    if parameters := signature(name, each):
        lines += ["```python", f"{name.rpartition('.')[2]}{parameters}", "```\n"]
    return [*lines, text(each), ""]


class Plain(str):
    """Text whose repr is the text itself, for signatures."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, each: Any) -> str:
    if isinstance(each, property) or name in WITHOUT_CONSTRUCTOR or getattr(each, "_is_protocol", False):
        return ""
    stub = STUBS.get(name.rpartition(".")[2]) if name.startswith(("Communicator.", "Work.")) else None
    if stub is not None:
        return stub
    try:
        declared = inspect.signature(each)
    except (ValueError, TypeError):
        return ""
    parameters = []
    for parameter in declared.parameters.values():
        if parameter.name == "self" or (parameter.name == "comm" and name.startswith("Communicator.")):
            continue
        if parameter.default is not parameter.empty and callable(parameter.default):
            parameter = parameter.replace(default=Plain("..."))
        if parameter.annotation is not parameter.empty:
            parameter = parameter.replace(annotation=Plain(parameter.annotation))
        parameters.append(parameter)
    returned = declared.return_annotation
    if returned is not declared.empty:
        returned = Plain(returned)
    return str(declared.replace(parameters=parameters, return_annotation=returned))


def stubs() -> dict[str, str]:
    """Return the signatures of native methods, from _native.pyi."""
    signatures: dict[str, str] = {}
    for node in ast.walk(ast.parse((ROOT / "src/hocket/_native.pyi").read_text())):
        if isinstance(node, ast.ClassDef) and node.name in ("Communicator", "Work", "Prepared"):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                    arguments = ast.unparse(each.args).replace("self, ", "").replace("self", "")
                    arguments = re.sub(r"\*\*how: Unpack\[\w+\]", f"*, {KEYWORDS}", arguments)
                    is_method = not any(getattr(each_, "id", "") == "property" for each_ in each.decorator_list)
                    signatures.setdefault(each.name, f"({arguments})" if is_method else "")
    return signatures


STUBS = stubs()


def first_paragraph(each: Any) -> str:
    return " ".join((inspect.getdoc(each) or "").split("\n\n")[0].split())


def text(each: Any) -> str:
    """Convert a docstring to Markdown; sections become lists."""
    lines: list[str] = []
    section = False
    for line in (inspect.getdoc(each) or "").splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Attributes):", line):
            lines += ["", f"*{line[:-1]}*", ""]
            section = True
        elif section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and re.fullmatch(r"[\w, .]+", name) else f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append("  " + line.strip())
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines).replace("``", "`")


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page())
