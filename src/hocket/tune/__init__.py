"""Measures which backend is the fastest for what, keeps that in a table, chooses by it and explains the choice."""

from hocket.tune.find import automatic_policy, find_table
from hocket.tune.machine import Machine, this_machine
from hocket.tune.model import ModelPolicy
from hocket.tune.policy import TablePolicy
from hocket.tune.table import Row, Table, load_table, save_table

__all__ = [
    "Machine",
    "ModelPolicy",
    "Row",
    "Table",
    "TablePolicy",
    "automatic_policy",
    "find_table",
    "load_table",
    "save_table",
    "this_machine",
]
