"""The Typer application: finds the verbs and turns every error into one line and an exit code."""

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
from hocket.discovery import bad_entry, blaming, by_name, declared, takes
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
        The exit code: 2 for bad input, after one line on stderr that says what is wrong. Any other error is one line
        too, and 1, and below it stands what a failed job wrote; with $HOCKET_TRACEBACK set it is raised, for those who
        look for a fault in hocket itself.
    """
    try:
        code = _application()(arguments, prog_name="hocket", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except _USAGE_ERRORS as error:
        return _explain_usage(error, arguments)
    except (InvalidArgument, InvalidModel, InvalidSchedule, InvalidType, TableError) as error:
        return _complain(f"hocket {arguments[0]}", str(error), EXIT_BAD_INPUT)
    except Exception as error:
        if os.environ.get("HOCKET_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            error = explain_missing(error, f"hocket {arguments[0]}") or error
        if isinstance(error, LaunchError):  # shows what a job wrote, in lines
            print(f"hocket {arguments[0]}: {error}", file=sys.stderr)
            return EXIT_FAILED
        if isinstance(error, MemoryError):
            return _complain(f"hocket {arguments[0]}", "there is not enough memory for that", EXIT_FAILED)
        name = "" if isinstance(error, HocketError) else f"{type(error).__name__}: "
        of_all = isinstance(error, WrongResult)
        return _complain(f"hocket {arguments[0]}", f"{name}{error}", EXIT_FAILED, of_all)
    return code if isinstance(code, int) else 0


def _application() -> Any:
    """Build the application out of what the function `register` of every module of this folder adds to one."""
    modules = declared(
        hocket.cli, "register", "a function of the Typer application", lambda it: takes(it, "application")
    )
    verbs = [(name, module, verb) for module, register in modules for name, verb in _verbs(module, register)]
    application: Any = typer.main.get_command(_empty())  # with the options for completion in a shell
    application.commands.update(by_name("verb", verbs))
    _say_first_sentences(application)
    return application


def _say_first_sentences(group: Any) -> None:
    """Have lists of commands show the first sentence of each whole; by itself click cuts it to a line."""
    for command in group.commands.values():
        text = inspect.cleandoc(command.help or "").split("\n\n")[0]
        command.short_help = re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
        if hasattr(command, "commands"):
            _say_first_sentences(command)


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


def _verbs(module: ModuleType, register: Callable[[typer.Typer], object]) -> list[tuple[str, Any]]:
    application = _empty()
    with blaming(module.__name__):
        register(application)
        verbs = list(typer.main.get_group(application).commands.items())
    if not verbs:
        raise bad_entry(module.__name__, module.__file__, "adds no command to the application that `register` is given")
    return verbs


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"hocket {importlib.metadata.version('hocket')}")
        except importlib.metadata.PackageNotFoundError:
            print("hocket (not installed, run from its sources)")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run, measure and observe the processes of a parallel Python program."""


def _explain_usage(error: Any, arguments: list[str]) -> int:
    """Print a usage error of Typer in one line, or the whole help where the arguments are missing altogether."""
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "hocket"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return EXIT_BAD_INPUT
    message = _with_options_that_begin_so(error) or error.format_message().rstrip(".")
    return _complain(command, f"{_with_value(message, error, arguments)}; see: {command} --help", EXIT_BAD_INPUT)


def _with_options_that_begin_so(error: Any) -> str | None:
    """Return the message for an unknown option that is the beginning of known ones, which click does not suggest."""
    name = getattr(error, "option_name", "")
    if not name.startswith("--") or getattr(error, "possibilities", None) or error.ctx is None:
        return None
    known = [each for parameter in error.ctx.command.params for each in parameter.opts]
    meant = sorted(each for each in known if each.startswith(name))
    return f"No such option: {name} (Possible options: {', '.join(meant)})" if meant else None


def _with_value(message: str, error: Any, arguments: list[str]) -> str:
    """Put the value to a message of Typer's that leaves it out."""
    parameter = getattr(error, "param", None)
    given = [value for name, value in itertools.pairwise(arguments) if name in getattr(parameter, "opts", ())]
    if len(set(given)) != 1 or repr(given[-1]) in message:  # the program's own arguments may have such an option, too
        return message
    found = _NO_NUMBER.search(message)
    return f"{message[: found.start()]}{given[-1]!r} is no {found[1]}" if found else f"{message}: {given[-1]!r}"


def _complain(command: str, message: str, exit_code: int, of_all: bool = False) -> int:
    """Print what is wrong, on one rank of the same command where all of them know: with the input, or with a result."""
    if (of_all or exit_code == EXIT_BAD_INPUT) and _is_later_rank():
        return exit_code
    print(f"{command}: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _is_later_rank() -> bool:
    try:
        return read_world().rank > 0
    except HocketError:
        return False


_NO_NUMBER = re.compile(r"Input should be a valid (integer|number),.*")
# click's base of all usage errors; Typer hands on only BadParameter, from click or from its own copy of it.
_USAGE_ERRORS = cast(type[Exception], typer.BadParameter.__mro__[2])
