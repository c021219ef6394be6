"""The tables of a run and the types of their columns, as SQL, Parquet files and the store have them.

Times `began_s`, `ended_s`, `at_s`, `first_s` and `last_s` are seconds since the run began; what is unknown is NaN, -1
or "".
"""

from __future__ import annotations

SCHEMA_VERSION = 3
"""Of the tables in stores. Raise it when a table, a column or the meaning of a value changes: what a store has was
computed when it came there, so one of another version would lack tables, or say what is not so, and is refused."""
TEXT, INTEGER, NUMBER, BOOLEAN = "text", "integer", "number", "boolean"
NUMPY_TYPES = {TEXT: "object", INTEGER: "int64", NUMBER: "float64", BOOLEAN: "bool"}
OF_PROCESS = {"process": INTEGER, "rank": INTEGER, "host": TEXT}
_SPAN = {"began_s": NUMBER, "ended_s": NUMBER, "seconds": NUMBER}


def _numbers(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), NUMBER)


TABLE_COLUMNS: dict[str, dict[str, str]] = {
    "processes": {
        "process": INTEGER, "rank": INTEGER, "pid": INTEGER, "host": TEXT, "program": TEXT, "state": TEXT,
        "began_s": NUMBER, "num_lost": INTEGER, "cost_s": NUMBER,
    },
    "communicators": {
        "comm": INTEGER, "communicator": TEXT, "job": INTEGER, "size": INTEGER, "members": TEXT,
        "is_of_program": BOOLEAN,
    },
    "operations": {
        **OF_PROCESS, "comm": INTEGER, "communicator": TEXT, "number": INTEGER, "op": TEXT, "peer": INTEGER,
        "nbytes": INTEGER, **_SPAN, "blocked_s": NUMBER, "state": TEXT, "is_async": BOOLEAN, "library": TEXT,
        "algorithm": TEXT, "weight": INTEGER,
    },
    "waits": {
        **OF_PROCESS, "comm": INTEGER, "number": INTEGER, "op": TEXT, "began_s": NUMBER, "wait_s": NUMBER,
        "lateness_s": NUMBER, "late_rank": INTEGER,
    },
    "totals": {
        **OF_PROCESS, "comm": INTEGER, "communicator": TEXT, "layer": TEXT, "op": TEXT, "peer": INTEGER,
        "least_nbytes": INTEGER, "library": TEXT, "algorithm": TEXT, "count": INTEGER, "failed": INTEGER,
        "nbytes": INTEGER, "seconds": NUMBER, "least_s": NUMBER, "most_s": NUMBER,
    },
    "transfers": {
        **OF_PROCESS, "kind": TEXT, "communicator": TEXT, "nbytes": INTEGER, **_SPAN, "state": TEXT, "weight": INTEGER,
        "number": INTEGER, "peer": INTEGER,
    },
    "io": {**OF_PROCESS, "kind": TEXT, "file": TEXT, "nbytes": INTEGER, **_SPAN, "state": TEXT, "weight": INTEGER},
    "dask": {
        **OF_PROCESS, "kind": TEXT, "peer": TEXT, "peer_process": INTEGER, "path": TEXT, "nbytes": INTEGER,
        "queue_nbytes": INTEGER, **_SPAN, "weight": INTEGER,
    },
    "regions": {**OF_PROCESS, "region": TEXT, **_SPAN},
    "samples": {
        **OF_PROCESS, "at_s": NUMBER, "state": TEXT,
        **_numbers(
            "cpu_s num_threads resident_nbytes minor_faults major_faults voluntary_switches forced_switches read_nbytes"
            " written_nbytes device_read_nbytes device_written_nbytes cpu_wait_s"
        ),
    },
    "host_samples": {
        "host": TEXT, "source": TEXT, "device": TEXT, "number": TEXT, "at_s": NUMBER, "value": NUMBER,
    },
    "connections": {
        "process": INTEGER, "peer": INTEGER, "rank": INTEGER, "peer_rank": INTEGER, "host": TEXT, "local": TEXT,
        "remote": TEXT, "device": TEXT,
        **_numbers(
            "first_s last_s sent_nbytes resent_nbytes received_nbytes sent_segments resent_segments busy_s"
            " receiver_limited_s buffer_limited_s network_limited_s rtt_s least_rtt_s"
        ),
        "limited_by": TEXT,
    },
    "links": {
        "host": TEXT, "device": TEXT, "queue": TEXT, "other_end": TEXT, "neighbor": TEXT, "peers": TEXT,
        "other_process": INTEGER,
        **_numbers(
            "seconds sent_nbytes received_nbytes rank_nbytes other_nbytes foreign_nbytes header_nbytes limited_s"
            " limited_nbytes_s speed_nbytes_s queue_nbytes_s num_waits num_drops rtt_ratio resent_nbytes"
            " residual_nbytes"
        ),
    },
    "findings": {
        "kind": TEXT, "seconds": NUMBER, "layer": TEXT, "process": INTEGER, "rank": INTEGER, "text": TEXT,
    },
    "matrix": {
        "job": INTEGER, "rank": INTEGER, "peer_rank": INTEGER, "sent_nbytes": INTEGER, "num_messages": INTEGER,
        "modelled_nbytes": NUMBER,
    },
    "breakdown": {
        "op": TEXT, "least_nbytes": INTEGER, "most_nbytes": INTEGER, "algorithm": TEXT, "library": TEXT,
        "is_foreign": BOOLEAN, "num_ranks": INTEGER, "count": INTEGER, "failed": INTEGER, "nbytes": INTEGER,
        **_numbers("seconds median_s p99_s bus_bandwidth"),
    },
    "choices": {
        "op": TEXT, "least_nbytes": INTEGER, "most_nbytes": INTEGER, "num_ranks": INTEGER, "carrier": TEXT,
        "is_foreign": BOOLEAN, "count": INTEGER, "seconds": NUMBER, "median_s": NUMBER, "expected_s": NUMBER,
        "source": TEXT, "why": TEXT, "other": TEXT, "other_s": NUMBER, "other_source": TEXT, "saved_s": NUMBER,
    },
    "conserved": {
        "edge": TEXT, "what": TEXT, "expected_nbytes": NUMBER, "found_nbytes": NUMBER, "is_modelled": BOOLEAN,
    },
    "efficiencies": {
        "job": INTEGER, "num_ranks": INTEGER,
        **_numbers("runtime_s load_balance communication parallel wait_share transfer_share"),
        "is_upper_bound": BOOLEAN,
    },
    "problems": {**OF_PROCESS, "text": TEXT},
    "unfinished": {
        "op": TEXT, "communicator": TEXT, "job": INTEGER, "number": INTEGER, "peer": INTEGER, "nbytes": INTEGER,
        "began_s": NUMBER, "seconds": NUMBER, "entered": TEXT, "missing": TEXT, "unknown": TEXT, "doing": TEXT,
    },
    "hosts": {"host": TEXT, "num_processes": INTEGER, "clock_error_s": NUMBER, "num_lost": INTEGER},
}  # fmt: skip
"""The type of each column of each table of a run."""
