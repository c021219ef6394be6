"""Files that hocket writes but the page does not open: what is to be done with each instead."""

from __future__ import annotations

from pathlib import Path

from hocket.observe.serve.result import ResultFile

_A_PART = "name its folder, not this file"
BY_NAME = {
    "hocket recorded run, version ": f"it is a part of a recorded run: {_A_PART}",
    "hocket series, version ": f"it is a part of a recorded run: {_A_PART}",
    "hocket connections, version ": f"it is a part of a recorded run: {_A_PART}",
    "hocket store, version ": f"it is a part of a store of runs: {_A_PART}",
    "hocket stored run, version ": "it is a part of a store of runs: name the folder of the store",
    "hocket senders, version ": "it is a part of a store of runs: name the folder of the store",
    "hocket loaded runs, version ": f"it is a part of a store of runs: {_A_PART}",
    "hocket tables, version ": f"it is a part of a folder of tables: {_A_PART}",
    "hocket-failure-": 'it is the record of a failed rank: "error" in it says what failed, "records" what went before',
}
"""By the begin of "format"."""
_BY_KEY = {
    "traceEvents": "it is a trace for Perfetto: open it at ui.perfetto.dev, or read it with `hocket observe import`",
    "simulated": "it has no version: print it again by `hocket simulate --json`, or open the schedule itself",
    "cells": "it was made by `hocket tune show --json`: name the table itself",
    "regrets": "it was made by `hocket tune learn --json`: name the table and the observations themselves",
    "explanations": "it was made by `hocket explain --json`: name the table itself",
    "is_judged": "it was made by `hocket bench compare --json`: name the results themselves, which are compared",
    "without_answer": "it has no version: print it again by `hocket observe fabric --json`",
    "hops": "it is a route through a fabric: print the fabric itself by `hocket observe fabric --json`",
    "type_name": "it is the report of a failed rank, which `hocket run` has printed",
}
_BY_ENDING = {
    ".csv": "CSV has no version: a schedule becomes one that can be opened by `hocket pipeline convert FILE -o x.json`",
    ".png": "it is a picture",
    ".svg": "it is a picture",
    ".pdf": "it is a picture",
    ".gz": "it is compressed: a trace is opened at ui.perfetto.dev",
    ".keras": "it is a saved model: read it with keras.saving.load_model",
    ".html": "it is a page: open it in a browser",
    ".pt": "it is a saved model: read it with torch.load",
    ".parquet": "it is a table: name its folder, not this file",
}


def advice_for(file: ResultFile, first_line: str) -> str:
    """Return what a file is, and what is to be done with it; "": nothing is known of it.

    Args:
        file: as it was read.
        first_line: of its text.
    """
    content = file.content or {}
    head = str(content.get("format", first_line))
    for name, advice in BY_NAME.items():
        if head.startswith(name):
            return advice
    for key, advice in _BY_KEY.items():
        if key in content:
            return advice
    if "hocket_bench" in content:
        return f'"hocket_bench" must be a number, not {content["hocket_bench"]!r:.40}'
    if "format" in content:
        return ""
    return advice_for_ending(file.path)


def advice_for_ending(path: Path) -> str:
    """Return what a file is by the end of its name, and what is to be done with it; "": nothing is known of it."""
    return _BY_ENDING.get(path.suffix.lower(), "")
