"""Tests check the values that an error names, never its sentences: see `naming`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .naming import Given, assert_names, is_prose, names_value, raises

HERE = Path(__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Allowed sentences in tests, by file, with the reason.
ALLOWED: dict[str, dict[str, str]] = {
    "boot/test_launcher.py": {"error output\n": "the test's own program writes it"},
    "cli/test_explain.py": {"another machine": "what a table is of: a value of the explanation, which is no error"},
    "cli/test_pipeline.py": {"0.0% of the span": "a figure with its unit, in a result"},
    "cli/test_run.py": {"Traceback (most recent call last):": "Python's"},
    "comm/test_spawn.py": {"by nobody": "the test raises it"},
    "session/test_simulator_errors.py": {"nothing here": "the test raises it", "can't start new thread": "Python's"},
    "torch/dist_calls.py": {"'nccl'.*shm, gloo, mpi": "a list of names"},
}


class Wrong(ValueError):
    """An error of this file."""

    ranks = (1,)


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("rank 1", True), ("rank 10", False), ("ank 1", False), ("12", True), ("2", False), ("1", True), ("0.5", True),
        ("5", False), ("0", False), ("-3", True), ("3", False), ("'sum'", True), ("sum", True), ("x.csv", True),
        ("num_ranks", True), ("ranks", False), ("[4]", True), ("--json", True),
    ],
)  # fmt: skip
def test_values_are_named_as_a_whole(name: str, is_named: bool) -> None:
    text = "rank 1, num_ranks=12: not 'sum' of [4] in x.csv, -3 and 0.5; see --json."
    assert names_value(text, name) == is_named


def test_sentences_are_no_names() -> None:
    for sentence in ("has to be", "rank 1 is gone, and", "must be one of"):
        with pytest.raises(AssertionError):
            assert_names(sentence, sentence)
        assert_names(sentence, Given(sentence))
    assert_names("see hocket tune run, or write pip install x", "hocket tune run", "pip install x")


def test_raises_asks_for_class_names_and_fields() -> None:
    def fail(error: type[Exception], **wanted: object) -> None:
        with raises(error, names=("size", "-3"), **wanted):
            raise Wrong("size is 1 or more, not -3")

    fail(Wrong)
    fail(Wrong, ranks=(1,))
    for error, wanted in ((ValueError, {}), (Wrong, {"ranks": (2,)})):
        with pytest.raises(AssertionError):
            fail(error, **wanted)
    with pytest.raises(AssertionError), raises(Wrong, names="3"):
        raise Wrong("size is 1 or more, not -3")


def test_no_test_pins_a_sentence() -> None:
    found = {
        (str(path.relative_to(HERE)), line, text)
        for path in sorted(HERE.rglob("*.py"))
        if path != Path(__file__)
        for line, text in sentences_in(ast.parse(path.read_text()))
    }
    wrong = sorted(each for each in found if each[2] not in ALLOWED.get(each[0], {}))
    assert not wrong, "\n".join(f"tests/{path}:{line}: {text!r}" for path, line, text in wrong)
    unused = {(path, text) for path, texts in ALLOWED.items() for text in texts} - {
        (each[0], each[2]) for each in found
    }
    assert not unused


@pytest.mark.parametrize(
    "source",
    [
        'with pytest.raises(ValueError, match="must be one of"):\n    pass',
        'with pytest.warns(UserWarning, match=rf"{name} has to be \\d+"):\n    pass',
        'assert "must be one of" in done.stderr',
        'assert done.stderr.startswith("hocket run: there is no script")',
        'assert str(caught.value) == f"{name} has to be a number"',
        'assert all(word in str(error) for word in ("x", "has to be a number"))',
        'for words in ("x", "has to be a number"):\n    assert words in str(error)',
        '@pytest.mark.parametrize(("n", "words"), [(1, "x"), (2, "has to be a number")])\n'
        "def test(n, words):\n    assert words in done.stderr",
        'CASES = [("x", "has to be a number")]\n'
        '@pytest.mark.parametrize(("n", "words"), CASES)\n'
        "def test(n, words):\n    with pytest.raises(ValueError, match=words):\n        pass",
        "SCRIPT = '''\nassert \"rank 1 has had enough of it\" in str(error)\n'''",
    ],
)
def test_a_pinned_sentence_is_found(source: str) -> None:
    assert list(sentences_in(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        'with pytest.raises(ValueError, match="rank 1.*num_ranks"):\n    pass',
        'assert "--points" in done.stderr and "what it says at last" in done.stdout',
        '@pytest.mark.parametrize(("case", "words"), [("a case of its own", "x")])\n'
        "def test(case, words):\n    assert words in done.stderr",
        'assert job.return_code == 0, "this went wrong" + job.stderr',
    ],
)
def test_values_are_left_alone(source: str) -> None:
    assert not list(sentences_in(ast.parse(source)))


def sentences_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find sentences in a test's checks of errors: line and text. Also reads programs within strings."""
    for scope, node in _with_scopes(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("raises", "warns"):
            patterns = [each.value for each in node.keywords if each.arg == "match"]
            for text in (text for each in patterns for text in _texts(each, scope)):
                if is_prose(re.sub(r"\\[dws.]|[.+*?^$()|\[\]]", "\0", text)):
                    yield node.lineno, text
        elif isinstance(node, ast.Assert):
            for asked, of in _questions(node.test):
                if _is_told(of):
                    yield from ((node.lineno, text) for text in _texts(asked, scope) if is_prose(text))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "assert " in node.value:
            try:
                within = ast.parse(node.value)
            except SyntaxError:
                continue
            if not (len(within.body) == 1 and isinstance(within.body[0], ast.Expr)):
                yield from ((node.lineno + line, text) for line, text in sentences_in(within))


def _with_scopes(tree: ast.Module) -> Iterator[tuple[list[ast.AST], ast.AST]]:
    """All nodes, each with its enclosing module and functions."""
    waiting: list[tuple[list[ast.AST], ast.AST]] = [([tree], tree)]
    while waiting:
        scope, node = waiting.pop()
        yield scope, node
        within = [*scope, node] if isinstance(node, FUNCTIONS) else scope
        waiting += [(within, child) for child in ast.iter_child_nodes(node)]


def _questions(test: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The text that an assertion searches for, and where."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from ((left, right), (right, left))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _SEARCHES:
            assert isinstance(node.func, ast.Attribute)
            yield from ((each, node.func.value) for each in node.args)


_SEARCHES = ("startswith", "endswith", "count", "search", "match")


def _is_told(node: ast.AST) -> bool:
    """Whether this is the message of an error, or stderr of a command."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in ("stderr", "__notes__"))
        or (isinstance(each, ast.Name) and each.id in ("stderr", "told", "message"))
        or (isinstance(each, ast.Call) and getattr(each.func, "id", "") == "str")
        for each in ast.walk(node)
    )


def _texts(node: ast.AST, scope: list[ast.AST]) -> Iterator[str]:
    """The possible strings of an expression: its literals, or those that its name is bound to."""
    if isinstance(node, ast.Name):
        for within in scope:
            yield from _bound(node.id, within, scope[0])
    else:
        yield from _constants(node)


def _bound(name: str, within: ast.AST, module: ast.AST) -> Iterator[str]:
    """The strings that a name is bound to: in loops, comprehensions and `parametrize`."""
    for node in getattr(within, "decorator_list", []):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "parametrize" and len(node.args) > 1:
            yield from _column(name, node.args[0], node.args[1], module)
    if not isinstance(within, ast.Module):
        for node in ast.walk(within):
            if isinstance(node, (ast.For, ast.comprehension)):
                yield from _column(name, node.target, node.iter, module)
    else:
        for node in [each for each in ast.walk(within) if not isinstance(each, FUNCTIONS)]:
            if isinstance(node, (ast.For, ast.comprehension)):
                yield from _column(name, node.target, node.iter, module)


def _column(name: str, names: ast.AST, rows: ast.AST, module: ast.AST) -> Iterator[str]:
    """The strings of the rows in the column of a name."""
    known = [*_constants(names), *(each.id for each in ast.walk(names) if isinstance(each, ast.Name))]
    if name not in known:
        return
    if isinstance(rows, ast.Name):  # of the module
        rows = next(_values_of(rows.id, module), rows)
    for row in getattr(rows, "elts", []):
        is_whole = len(known) == 1 or not isinstance(row, ast.Tuple)
        yield from _constants(row if is_whole else row.elts[known.index(name)])


def _values_of(name: str, module: ast.AST) -> Iterator[ast.AST]:
    for each in ast.walk(module):
        if isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                yield each.value


def _constants(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
