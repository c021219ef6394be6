"""The option --json, which every verb has."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def json_text(value: Any) -> str:
    """Return a value as JSON; numbers that JSON does not have, such as NaN, are null."""
    return json.dumps(_finite(value), allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
