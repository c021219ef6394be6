"""Measure which backend is the fastest for each operation, keep the times in a table, choose by it, and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy
from hocket.tune.find import automatic_policy, find_table
from hocket.tune.machine import Machine, this_machine
from hocket.tune.model import ModelPolicy
from hocket.tune.observations import (
    LearnedTable,
    Observation,
    Observations,
    Regret,
    learn_from,
    load_observations,
    regrets_of,
    save_observations,
)
from hocket.tune.policy import TablePolicy
from hocket.tune.table import Table, load_table, save_table
from hocket.tune.table import TableRow as Row

if TYPE_CHECKING:
    from hocket.tune.learn import Learner

__all__ = [
    "LearnedTable",
    "Learner",
    "Machine",
    "ModelPolicy",
    "Observation",
    "Observations",
    "Regret",
    "Row",
    "Table",
    "TablePolicy",
    "automatic_policy",
    "find_table",
    "learn_from",
    "load_observations",
    "load_table",
    "regrets_of",
    "save_observations",
    "save_table",
    "this_machine",
]

__getattr__ = lazy(__name__)  # needs NumPy, which other programs may not load
