"""Which format a file has, by its ending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.formats import chrome, flight_record, inspector, kineto, observations, otlp, perfetto, prometheus
from hocket.observe.saved import empty_folder
from hocket.observe.store import parquet
from hocket.whole_file import check_output

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun


@dataclass(frozen=True)
class ExportFormat:
    """A format that runs can be written in.

    Args:
        endings: of the names of files or folders; a longer one comes before a shorter one that it ends in.
        write: writes a run into a path.
        is_folder: whether it is a folder, with a file for each rank or process.
        text: what it is.
    """

    endings: tuple[str, ...]
    write: Callable[[ObservedRun, Path], None]
    is_folder: bool
    text: str


EXPORT_FORMATS = (
    ExportFormat(observations.ENDINGS, observations.write_observations, False, "times for hocket tune learn"),
    ExportFormat(otlp.ENDINGS, otlp.write_otlp, False, "spans of OpenTelemetry, one OTLP request a line"),
    ExportFormat(prometheus.INSPECTOR_ENDINGS, prometheus.write_inspector_metrics, False,
                 "metrics for the dashboards of NCCL's Inspector"),
    ExportFormat(prometheus.ENDINGS, prometheus.write_prometheus, False, "metrics for Prometheus"),
    ExportFormat(perfetto.ENDINGS, perfetto.write_perfetto, False, "a timeline for ui.perfetto.dev, for long runs"),
    ExportFormat(chrome.ENDINGS, chrome.write_chrome, False, "a timeline for ui.perfetto.dev and other viewers"),
    ExportFormat(flight_record.ENDINGS, flight_record.write_flight_records, True, "flight records for torchfrtrace"),
    ExportFormat(inspector.ENDINGS, inspector.write_inspector_records, True, "records of NCCL's Inspector"),
    ExportFormat(parquet.ENDINGS, parquet.write_parquet, True, "tables as Parquet files"),
    ExportFormat(kineto.ENDINGS, kineto.write_kineto, True, "traces for HolisticTraceAnalysis"),
)  # fmt: skip


def export_run(run: ObservedRun, path: str | Path) -> None:
    """Write a recorded run as a file or folder of another tool, chosen by the ending of its name.

    | ending | what it is |
    |---|---|
    | ``.json``, ``.json.gz`` | a timeline for ui.perfetto.dev and other viewers of Chrome's traces |
    | ``.pftrace``, ``.pftrace.gz`` | the same as Perfetto's own trace, for long runs |
    | ``.flight`` | a folder of flight records, which ``torchfrtrace`` analyses |
    | ``.kineto`` | a folder of traces for HolisticTraceAnalysis |
    | ``.inspector`` | a folder of records of NCCL's Inspector |
    | ``.prom`` | metrics for Prometheus |
    | ``.inspector.prom`` | metrics for the dashboards of NCCL's Inspector |
    | ``.observations.json`` | times for ``hocket tune learn --from`` |
    | ``.parquet`` | a folder of tables, which `query_tables` and others read |
    | ``.otlp.jsonl``, ``.otlp.jsonl.gz`` | spans of OpenTelemetry |

    Args:
        run: from `open_run`.
        path: of the file, or of a new or empty folder.

    Raises:
        InvalidArgument: the ending is unknown, or nothing can be written there.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-export")
        >>> observe.export_run(observe.open_run("run-to-export"), "cat.json")
        >>> events = json.loads(Path("cat.json").read_text())["traceEvents"]
        >>> {"open", "read", "close"} <= {event["name"] for event in events if event["ph"] == "X"}
        True
    """
    target = Path(path)
    found = format_of(target)
    if found.is_folder:
        empty_folder(target)
    else:
        check_output(target)
    found.write(run, target)


def format_of(path: Path) -> ExportFormat:
    """Return the format of files with this ending.

    Raises:
        InvalidArgument: the ending is unknown; lists the known ones.
    """
    for each in EXPORT_FORMATS:
        if path.name.endswith(each.endings):
            return each
    known = ", ".join(ending for each in EXPORT_FORMATS for ending in each.endings)
    raise InvalidArgument(f"{path} must end in one of {known}")
