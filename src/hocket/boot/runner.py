"""Run a script as one rank: ``python -m hocket.boot.runner [-m] script.py args...``.

The script has the same environment as under ``python script.py args...``. An uncaught exception is not printed here,
where the tracebacks of all ranks would mix; it is written for the launcher to $HOCKET_REPORT_DIR/rank-N.json.
"""

from __future__ import annotations

import sys

# With `-m`, the interpreter puts the working directory first. A json.py there must not replace the library's.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import builtins
import contextlib
import importlib.util
import io
import os
import pkgutil
import signal
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from hocket.boot.mpi_variables import keep_from_children, say_failed
from hocket.boot.open_mpi import watch_import
from hocket.boot.readiness import say_ready
from hocket.boot.report import EXIT_EXCEPTION, make_report, write_report

EXIT_INTERRUPTED = 130


def main(arguments: list[str]) -> None:
    """Run the program named by `arguments`, and turn an uncaught exception into a report and an exit code.

    Returns normally or raises SystemExit, so that the interpreter ends as after any script: threads are joined and exit
    handlers run.

    Args:
        arguments: ``["script.py", *args]`` or ``["-m", "module", *args]``.
    """
    pid = os.getpid()
    try:
        say_ready()  # after this the launcher passes Ctrl-C to it
        keep_from_children()
        watch_import()
        run_program(arguments)
    except SystemExit as end:
        if os.getpid() == pid and (code := _exit_code(end)) and _is_in_mpi():
            say_failed(code)
        raise
    except BaseException as error:
        code = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_EXCEPTION
        trace = _without_own_frames(error.__traceback__)
        error.__traceback__ = trace  # Python's own hook prints this one, not its argument
        # A process forked by the script also gets here; its failure is not that of the rank.
        with _no_interrupt():  # one Ctrl-C goes to all ranks; another rank's failure may arrive before it
            if os.getpid() != pid or not _leave_report(error, trace):
                sys.excepthook(type(error), error, trace)
            elif _is_in_mpi():
                say_failed(code)
        # As Python's hook does; exit handlers read these to find how the program ended.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.exit(code)


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if previous is not None:  # None: not set from Python, so Python cannot restore it
            signal.signal(signal.SIGINT, previous)


def run_program(arguments: list[str]) -> None:
    as_module = arguments[0] == "-m"
    name, *script_arguments = arguments[as_module:]
    sys.argv = [name, *script_arguments]  # set early, for the code of a module's parent packages
    code, spec = _find_module(name) if as_module else _find_script(name)
    program = ModuleType("__main__")
    program.__dict__.update(__file__=code.co_filename, __cached__=None, __builtins__=builtins)
    if spec is None:
        program.__loader__ = SourceFileLoader("__main__", code.co_filename)
    else:
        sys.argv[0] = spec.origin if as_module and spec.origin else name
        program.__file__ = spec.origin
        program.__loader__, program.__spec__, program.__package__ = spec.loader, spec, spec.parent
        program.__dict__["__cached__"] = spec.cached
    # Not runpy.run_path: it removes its `__main__` after the script's last line, but threads and exit handlers of the
    # script may still need it (pickle does).
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


def _find_script(path: str) -> tuple[CodeType, ModuleSpec | None]:
    """Compile a script, or the module `__main__` in a folder or an archive."""
    absolute = str(Path(path).absolute())  # as Python does since 3.9: the script may change the directory
    finder = pkgutil.get_importer(absolute)
    if finder is not None and (spec := finder.find_spec("__main__")) is not None:
        sys.path.insert(0, absolute)
        return _load(spec)
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(path).resolve().parent))
    with io.open_code(absolute) as file:
        return compile(file.read(), absolute, "exec", dont_inherit=True), None


def _find_module(name: str) -> tuple[CodeType, ModuleSpec]:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r} that can be run", name=name)
    return _load(spec)


def _load(spec: ModuleSpec) -> tuple[CodeType, ModuleSpec]:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise ImportError(f"{spec.name!r} has no Python code that can be run", name=spec.name)
    return code, spec


def _exit_code(end: SystemExit) -> int:
    """Return the exit code of the interpreter; 1 for a text, which it prints."""
    return 0 if end.code is None else end.code & 0xFF if isinstance(end.code, int) else EXIT_EXCEPTION


def _is_in_mpi() -> bool:
    """Return whether this process will wait for the others in MPI_Finalize."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_initialized()) and not mpi.Is_finalized()


def _leave_report(error: BaseException, trace: TracebackType | None) -> bool:
    """Write the report; return False if no launcher expects one."""
    folder, rank = os.environ.get("HOCKET_REPORT_DIR"), os.environ.get("RANK", "")
    if not folder or not rank.isdigit():
        return False
    try:
        write_report(Path(folder), make_report(int(rank), error, trace))
    except OSError:
        return False
    if sys.excepthook is not sys.__excepthook__:
        # A user's hook may do more than print (close a log, notify a service); its output is dropped, since the report
        # has the traceback. torch sets a hook that prints in every rank.
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            sys.excepthook(type(error), error, trace)
    return True


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Skip the frames of this file, and of the import system if the program was not found."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return trace


_OWN_FILES = {__file__, importlib.util.__file__, "<frozen importlib.util>", "<frozen importlib._bootstrap>"}

if __name__ == "__main__":
    # By an import, since the script will become `__main__`.
    from hocket.boot.runner import main as run_program

    run_program(sys.argv[1:])
