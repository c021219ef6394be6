"""See what the processes of a job do, also while they hang and after they were killed."""

from hocket.observe.activity import Activity, InFlight, activity_of
from hocket.observe.agent import RunRecording, follow_run, join_run, record_run
from hocket.observe.events import RecordedEvent, events_in
from hocket.observe.job import copy_recorders, find_job
from hocket.observe.job_watcher import JobView, JobWatcher, RankView
from hocket.observe.processes import ProcessStatus, process_status
from hocket.observe.program import counter, mark, region, traced
from hocket.observe.run_clock import RunClock
from hocket.observe.saved import ObservedRun, RunDescription, SavedProcess, open_run
from hocket.observe.sources import SourceStatus, find_sources

__all__ = [
    "Activity",
    "InFlight",
    "JobView",
    "ObservedRun",
    "ProcessStatus",
    "RecordedEvent",
    "RunDescription",
    "RunClock",
    "SavedProcess",
    "RankView",
    "RunRecording",
    "SourceStatus",
    "JobWatcher",
    "activity_of",
    "copy_recorders",
    "counter",
    "events_in",
    "find_job",
    "follow_run",
    "join_run",
    "find_sources",
    "mark",
    "open_run",
    "process_status",
    "record_run",
    "region",
    "traced",
]
