"""The one timing engine: interleaved rounds, max over ranks, ratios with intervals, and the machine's own noise.

Contenders that live in the same processes are measured by every rank through a `Team`;
contenders that need processes of their own (rivals with their own launcher) through a `Coordinator`,
whose jobs call `serve`. Both are a `Runner`, and `measure` is the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.measure.comparison import Comparison, Row, computed, judge, judge_values, null_rows, ratios
    from hocket.measure.contender import Contender, Key
    from hocket.measure.coordinator import Coordinator
    from hocket.measure.core_factor import CoreProbe
    from hocket.measure.jobs import Job, Process, direct_job
    from hocket.measure.machine import foreign_busy, pin, usage
    from hocket.measure.progress_bar import progress
    from hocket.measure.reporting import Report, report
    from hocket.measure.rounds import Measurement, Round, Settings, calibrate, measure
    from hocket.measure.runner import Runner
    from hocket.measure.script import finish, run_script, script_parser, settings_of
    from hocket.measure.series import Series, SeriesMeasurement, StopRule, measure_series
    from hocket.measure.statistics import Ratio, mean_ratio, median_interval, ratio
    from hocket.measure.team import Team
    from hocket.measure.worker import serve

__all__ = [
    "Comparison",
    "Contender",
    "Coordinator",
    "CoreProbe",
    "Job",
    "Key",
    "Measurement",
    "Process",
    "Ratio",
    "Report",
    "Round",
    "Row",
    "Runner",
    "Series",
    "SeriesMeasurement",
    "Settings",
    "StopRule",
    "Team",
    "calibrate",
    "computed",
    "direct_job",
    "finish",
    "foreign_busy",
    "judge",
    "judge_values",
    "mean_ratio",
    "measure",
    "measure_series",
    "median_interval",
    "null_rows",
    "pin",
    "progress",
    "ratio",
    "ratios",
    "report",
    "run_script",
    "script_parser",
    "serve",
    "settings_of",
    "usage",
]

__getattr__ = lazy(__name__)
