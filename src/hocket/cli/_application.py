"""The Typer application: discovers the verbs and turns every error into one line and an exit code."""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, cast

import typer

import hocket.cli
from hocket.boot.environment import read_world
from hocket.discovery import bad_entry, blaming, by_name, declared_by, discover, load, module_names, takes
from hocket.errors import (
    HocketError,
    InvalidArgument,
    InvalidModel,
    InvalidSchedule,
    InvalidType,
    LaunchError,
    TableError,
    WrongResult,
)
from hocket.lazy_names import explain_missing

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def run_command_line(arguments: list[str]) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The exit code: 2 for bad input, after one line on stderr that says what is wrong, and one for each note of the
        error that says what would be right; 1 for any other error, also after one line, followed by the output of a
        failed job. If HOCKET_TRACEBACK is set, other errors are raised, to debug hocket itself.
    """
    try:
        code = _application(arguments[0] if arguments else "")(arguments, prog_name="hocket", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except _USAGE_ERRORS as error:
        return _explain_usage(error, arguments)
    except (InvalidArgument, InvalidModel, InvalidSchedule, InvalidType, TableError) as error:
        code = _complain(f"hocket {arguments[0]}", str(error), EXIT_BAD_INPUT)
        for note in () if _is_later_rank() else getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return code
    except Exception as error:
        if os.environ.get("HOCKET_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            error = explain_missing(error, f"hocket {arguments[0]}") or error
        if isinstance(error, LaunchError):  # shows what a job wrote, in lines
            print(f"hocket {arguments[0]}: {error}", file=sys.stderr)
            return EXIT_FAILED
        if isinstance(error, MemoryError):
            return _complain(f"hocket {arguments[0]}", "not enough memory", EXIT_FAILED)
        name = "" if isinstance(error, HocketError) else f"{type(error).__name__}: "
        is_on_all_ranks = isinstance(error, WrongResult)
        return _complain(f"hocket {arguments[0]}", f"{name}{error}", EXIT_FAILED, is_on_all_ranks)
    return code if isinstance(code, int) else 0


def _application(verb: str = "") -> Any:
    """Build the application from the verbs that the function `register` of each module in this folder adds.

    Args:
        verb: the verb to run. If a module has its name, only this module is imported: the others take longer than the
            start of a job.
    """
    verbs = _verbs_of(load(hocket.cli, verb)) if verb in module_names(hocket.cli) else []
    if all(name != verb for name, _, _ in verbs):
        verbs = [each for module in discover(hocket.cli) for each in _verbs_of(module)]
    application: Any = typer.main.get_command(_empty())  # with the options for shell completion
    application.commands.update(by_name("verb", verbs))
    _set_short_help(application)
    return application


def _set_short_help(group: Any) -> None:
    """Make lists of commands show the whole first sentence of each help text; click would cut it to one line."""
    for command in group.commands.values():
        text = inspect.cleandoc(command.help or "").split("\n\n")[0]
        command.short_help = re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
        if hasattr(command, "commands"):
            _set_short_help(command)


def _empty() -> typer.Typer:
    application = typer.Typer(
        name="hocket",
        help="Run, measure and observe the processes of a parallel Python program.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_options)
    return application


def _verbs_of(module: ModuleType) -> list[tuple[str, ModuleType, Any]]:
    """Return the name, the module and the command of each verb of a module."""
    register = declared_by(
        module, "register", "a function of the Typer application", lambda it: takes(it, "application")
    )
    application = _empty()
    with blaming(module.__name__):
        register(application)
        verbs = list(typer.main.get_group(application).commands.items())
    if not verbs:
        raise bad_entry(
            module.__name__, module.__file__, "has a function `register` that adds no command to the application"
        )
    return [(name, module, verb) for name, verb in verbs]


def _print_version(is_given: bool) -> None:
    if is_given:
        try:
            print(f"hocket {importlib.metadata.version('hocket')}")
        except importlib.metadata.PackageNotFoundError:
            print("hocket (run from its sources, not installed)")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run, measure and observe the processes of a parallel Python program."""


def _explain_usage(error: Any, arguments: list[str]) -> int:
    """Print a usage error of Typer in one line, or the whole help text if no arguments are given."""
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "hocket"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return EXIT_BAD_INPUT
    message = (
        _with_options_of_that_prefix(error)
        or _with_a_valid_number(error, arguments)
        or _with_value(_with_one_spelling(error), error, arguments)
    )
    return _complain(command, f"{message}; see: {command} --help", EXIT_BAD_INPUT)


def _with_options_of_that_prefix(error: Any) -> str | None:
    """Return the message for an unknown option that is a prefix of known ones, which click does not suggest."""
    name = getattr(error, "option_name", "")
    if not name.startswith("--") or getattr(error, "possibilities", None) or error.ctx is None:
        return None
    known = [each for parameter in error.ctx.command.params for each in parameter.opts]
    candidates = sorted(each for each in known if each.startswith(name))
    return f"No such option: {name} (Possible options: {', '.join(candidates)})" if candidates else None


def _with_a_valid_number(error: Any, arguments: list[str]) -> str | None:
    """Return the message for an option whose value is not a number, with a valid use of the option first."""
    options: list[str] = getattr(getattr(error, "param", None), "opts", [])
    found = _NOT_A_NUMBER.search(error.format_message())
    if found is None or not options or not options[0].startswith("-"):
        return None
    is_integer = found[1] == "integer"
    parse: Callable[[str], object] = int if is_integer else float
    given = [  # in the order of the command line: behind the options, the program's own arguments may look like them
        (name, value if equals else following)
        for each, following in zip(arguments, [*arguments[1:], ""], strict=True)
        for name, equals, value in [each.partition("=")]
    ]
    wrong = [(name, value) for name, value in given if name in options and not _parses(value, parse)]
    name = wrong[0][0] if wrong else options[0]
    default = error.param.default
    example = default if isinstance(default, int | float) else 2
    message = f"{name} must be {'an integer' if is_integer else 'a number'}, for example {name} {example}"
    return f"{message}, not {wrong[0][1]!r}" if wrong else message


def _parses(text: str, parse: Callable[[str], object]) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _with_one_spelling(error: Any) -> str:
    """Return a message of Typer with only the first of an option's spellings."""
    message: str = error.format_message().rstrip(".")
    options: list[str] = getattr(getattr(error, "param", None), "opts", [])
    return message.replace(" / ".join(map(repr, options)), repr(options[0])) if options else message


def _with_value(message: str, error: Any, arguments: list[str]) -> str:
    """Add the value to a message of Typer that does not have it."""
    parameter = getattr(error, "param", None)
    given = [value for name, value in itertools.pairwise(arguments) if name in getattr(parameter, "opts", ())]
    if len(set(given)) != 1 or repr(given[-1]) in message:  # the program's own arguments may have the same option
        return message
    return f"{message}: {given[-1]!r}"


def _complain(command: str, message: str, exit_code: int, is_on_all_ranks: bool = False) -> int:
    """Print an error in one line; only on the first rank if all ranks of the same command have the same error."""
    if (is_on_all_ranks or exit_code == EXIT_BAD_INPUT) and _is_later_rank():
        return exit_code
    print(f"{command}: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _is_later_rank() -> bool:
    try:
        return read_world().rank > 0
    except HocketError:
        return False


_NOT_A_NUMBER = re.compile(r"(?:should be|is not) a valid (integer|number|float)\b")
# click's base class of usage errors; Typer exports only BadParameter, from click or from its own copy of click.
_USAGE_ERRORS = cast(type[Exception], typer.BadParameter.__mro__[2])
