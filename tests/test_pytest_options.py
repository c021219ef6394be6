"""Every pytest option works with living ranks and forked programs, or is refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.config import get_config

from .naming import assert_names
from .tier import sample

ROOT = Path(__file__).parents[1]
TESTS = [  # on living ranks; in forked programs; in pytest's own process
    "tests/comm/test_spawn.py::test_results_come_in_rank_order",
    "tests/cli/test_compare.py::test_wrong_arguments",
    "tests/test_options.py::test_values_that_can_be",
]
NUM_TESTS = 7

VALUES = {
    "--basetemp": "{folder}/base", "--cache-show": "*", "--config-file": "pyproject.toml", "--confcutdir": "tests",
    "--debug": "{folder}/debug", "--deselect": "tests/bench", "--doctest-glob": "*.none", "--durations": "3",
    "--durations-min": "0.1", "--ignore": "tests/bench", "--ignore-glob": "*/bench/*", "--junit-prefix": "some",
    "--junit-xml": "{folder}/junit.xml", "--log-auto-indent": "on", "--log-cli-date-format": "%H",
    "--log-cli-format": "%(message)s", "--log-cli-level": "INFO", "--log-date-format": "%H", "--log-disable": "hocket",
    "--log-file": "{folder}/log", "--log-file-date-format": "%H", "--log-file-format": "%(message)s",
    "--log-file-level": "INFO", "--log-format": "%(message)s", "--log-level": "DEBUG", "--max-warnings": "9",
    "--maxfail": "1", "--override-ini": "console_output_style=classic", "--pdbcls": "pdb:Pdb",
    "--pythonwarnings": "error::RuntimeWarning", "--report-chars": "A", "--rootdir": ".", "--verbosity": "2",
    "-k": "not nothing", "-m": "not full", "-p": "no:pastebin",
}  # fmt: skip
NOT_TRIED = {"--pastebin": "sends what tests print to a server"}
RUN_NO_TEST = {
    "--cache-show", "--collect-only", "--fixtures", "--fixtures-per-test", "--help", "--markers", "--setup-only",
    "--setup-plan", "--version",
}  # fmt: skip
REFUSED = {
    "--disable-plugin-autoload": "timeout", "--import-mode=append": "importlib", "--import-mode=prepend": "importlib",
    "-p=no:timeout": "timeout",
}  # fmt: skip


def _options() -> Iterator[tuple[str, str]]:
    parser = get_config()._parser
    for group in (*parser._groups, parser._anonymous):
        for option in group.options:
            names, facts = option.names(), option.attrs()
            (name,) = [each for each in names if each in {*VALUES, *NOT_TRIED, *RUN_NO_TEST}] or [names[-1]]
            if name in NOT_TRIED:
                continue
            if facts["nargs"] == 0:
                yield name, ""
            else:
                yield from ((name, value) for value in facts["choices"] or [VALUES[name]])
    yield from ((name, value) for name, _, value in (each.partition("=") for each in REFUSED) if name == "-p")


CASES = {f"{name}={value}" if value else name: (name, value) for name, value in _options()}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("case", sample(CASES, 1, always=["--import-mode=prepend"]))
def test_it_works_or_is_refused(case: str, tmp_path: Path) -> None:
    name, value = CASES[case]
    value = value.replace("{folder}", str(tmp_path))
    given = [name, value] if value and not name.startswith("--") else [f"{name}={value}" if value else name]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *given, *TESTS],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=80,
    )  # fmt: skip
    if case in REFUSED:
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert_names(done.stderr, name, REFUSED[case])
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert (f"{NUM_TESTS} passed" in done.stdout) == (name not in RUN_NO_TEST), done.stdout
