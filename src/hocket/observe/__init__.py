"""See what the processes of a job do, also while they hang and after they were killed."""

from hocket.observe.activity import Activity, InFlight, LatestCollective, activity_of, operation_name
from hocket.observe.batch import BatchTask, QueuedJob, queued_job
from hocket.observe.completeness import (
    IoAccount,
    IoCompleteness,
    RunCompleteness,
    completeness_of,
    recorded_bytes,
)
from hocket.observe.events import RecordedEvent, events_in
from hocket.observe.filesystems import recorded_filesystem
from hocket.observe.host_views import RunWatcher
from hocket.observe.io_hooks import record_io
from hocket.observe.job import copy_recorders, find_job
from hocket.observe.job_watcher import JobView, JobWatcher, RankView
from hocket.observe.processes import ProcessStatus, process_status
from hocket.observe.program import counter, mark, region, traced
from hocket.observe.recording import RunRecording, follow_run, join_run, record_run
from hocket.observe.run_clock import RunClock
from hocket.observe.saved import ObservedRun, RunDescription, SavedProcess, open_run
from hocket.observe.series import SERIES_STATES, SavedSeries
from hocket.observe.sources import SourceStatus, find_sources

__all__ = [
    "SERIES_STATES",
    "Activity",
    "BatchTask",
    "InFlight",
    "IoAccount",
    "IoCompleteness",
    "JobView",
    "LatestCollective",
    "ObservedRun",
    "ProcessStatus",
    "RecordedEvent",
    "RunDescription",
    "RunClock",
    "SavedProcess",
    "SavedSeries",
    "QueuedJob",
    "RankView",
    "RunCompleteness",
    "RunWatcher",
    "RunRecording",
    "SourceStatus",
    "JobWatcher",
    "activity_of",
    "completeness_of",
    "copy_recorders",
    "counter",
    "events_in",
    "find_job",
    "follow_run",
    "join_run",
    "find_sources",
    "mark",
    "open_run",
    "operation_name",
    "process_status",
    "queued_job",
    "record_io",
    "record_run",
    "recorded_bytes",
    "recorded_filesystem",
    "region",
    "traced",
]
