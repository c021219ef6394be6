"""See what the processes of a job do, also while they hang and after they were killed."""

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.observe.activity import Activity, InFlight, LatestCollective, activity_of, operation_name
    from hocket.observe.analysis.breakdown import BreakdownRow, breakdown
    from hocket.observe.analysis.choices import RunChoice, choices_of
    from hocket.observe.analysis.communicators import RunCommunicator
    from hocket.observe.analysis.comparison import RunDifference, compare_runs
    from hocket.observe.analysis.connections import RunConnection, connections_of
    from hocket.observe.analysis.conservation import ConservedBytes, conservation
    from hocket.observe.analysis.contention import Contention, contentions
    from hocket.observe.analysis.efficiency import JobEfficiency, efficiencies
    from hocket.observe.analysis.findings import RunFinding, findings
    from hocket.observe.analysis.foreign_load import ForeignLoad, foreign_loads
    from hocket.observe.analysis.hangs import Hang, MissingRank, hangs
    from hocket.observe.analysis.links import LinkLoad, link_loads
    from hocket.observe.analysis.matrix import CommunicationMatrix, communication_matrix
    from hocket.observe.analysis.observations import observations_of
    from hocket.observe.analysis.operations import RunOperations, operations_of
    from hocket.observe.analysis.overlap import LayerOverlap, overlaps
    from hocket.observe.analysis.primitives import PrimitiveUse, primitives
    from hocket.observe.analysis.stragglers import Straggler, stragglers
    from hocket.observe.analysis.totals import RunTotals, totals_of
    from hocket.observe.analysis.waits import WaitStates, wait_states
    from hocket.observe.batch import BatchTask, QueuedJob, queued_job
    from hocket.observe.completeness import (
        IoAccount,
        IoCompleteness,
        RunCompleteness,
        completeness_of,
        recorded_bytes,
    )
    from hocket.observe.connections import ConnectionEnd, HostConnections
    from hocket.observe.events import RecordedEvent, events_in
    from hocket.observe.fabric import (
        FabricChange,
        FabricNode,
        FabricPort,
        InfinibandFabric,
        discover_fabric,
        parse_fabric,
        parse_tables,
        read_labels,
    )
    from hocket.observe.fabric_sweep import FabricCounters, FabricSweep
    from hocket.observe.filesystems import recorded_filesystem
    from hocket.observe.formats.export import export_run
    from hocket.observe.formats.importing import import_records
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
    from hocket.observe.serve.report import write_report
    from hocket.observe.serve.running import serve_store
    from hocket.observe.sources import SourceStatus, find_sources
    from hocket.observe.store.client import StoreClient
    from hocket.observe.store.connection import QueryResult
    from hocket.observe.store.owner import Retention
    from hocket.observe.store.parquet import query_tables
    from hocket.observe.store.query import query_run
    from hocket.observe.store.stored_query import query_stored

__all__ = [
    "SERIES_STATES",
    "Activity",
    "BatchTask",
    "BreakdownRow",
    "CommunicationMatrix",
    "ConnectionEnd",
    "ConservedBytes",
    "Contention",
    "InfinibandFabric",
    "FabricChange",
    "FabricCounters",
    "FabricNode",
    "FabricPort",
    "FabricSweep",
    "ForeignLoad",
    "Hang",
    "HostConnections",
    "InFlight",
    "IoAccount",
    "IoCompleteness",
    "JobEfficiency",
    "JobView",
    "JobWatcher",
    "LatestCollective",
    "LayerOverlap",
    "LinkLoad",
    "MissingRank",
    "ObservedRun",
    "PrimitiveUse",
    "ProcessStatus",
    "QueryResult",
    "QueuedJob",
    "RankView",
    "RecordedEvent",
    "Retention",
    "RunClock",
    "RunChoice",
    "RunCommunicator",
    "RunCompleteness",
    "RunConnection",
    "RunDescription",
    "RunDifference",
    "RunFinding",
    "RunOperations",
    "RunRecording",
    "RunTotals",
    "RunWatcher",
    "SavedProcess",
    "SavedSeries",
    "SourceStatus",
    "StoreClient",
    "Straggler",
    "WaitStates",
    "activity_of",
    "breakdown",
    "choices_of",
    "communication_matrix",
    "compare_runs",
    "completeness_of",
    "connections_of",
    "conservation",
    "contentions",
    "copy_recorders",
    "counter",
    "discover_fabric",
    "efficiencies",
    "events_in",
    "export_run",
    "find_job",
    "find_sources",
    "findings",
    "follow_run",
    "foreign_loads",
    "hangs",
    "import_records",
    "join_run",
    "link_loads",
    "mark",
    "observations_of",
    "open_run",
    "operation_name",
    "operations_of",
    "overlaps",
    "parse_fabric",
    "parse_tables",
    "primitives",
    "process_status",
    "query_run",
    "query_stored",
    "query_tables",
    "queued_job",
    "read_labels",
    "record_io",
    "record_run",
    "recorded_bytes",
    "recorded_filesystem",
    "region",
    "serve_store",
    "stragglers",
    "totals_of",
    "traced",
    "wait_states",
    "write_report",
]

# Programs that name regions import this package in every rank: they load nothing but what they use.
__getattr__ = lazy(__name__)
