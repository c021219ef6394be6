"""`hocket doctor`: which parts of hocket work here, which do not, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from hocket.cli._output import AsJson
from hocket.cli._verbs import add_verb

_MARKS = {"good": "ok", "note": "note", "problem": "PROBLEM"}


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    add_verb(application, doctor)


def doctor(as_json: AsJson = False) -> int:
    """Find problems that keep hocket from working, or from being fast, on this machine.

    Changes nothing. Run it in the environment and under the launcher of your program. The exit code is 1 if something
    will not work, else 0.

    Examples:
      hocket doctor
      hocket doctor --json
      mpirun -n 1 hocket doctor
    """
    from hocket.cli._findings import find_all

    findings = find_all()
    has_problem = any(finding.state == "problem" for finding in findings)
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings], "has_problem": has_problem}))
        return int(has_problem)
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        print(f"{_MARKS[finding.state]:<8}{finding.about:<{width}}  {finding.text}")
        if finding.remedy:
            print(f"{'':<8}{'':<{width}}  -> {finding.remedy}")
    return int(has_problem)
