"""Records of operations, and the files that a failing rank writes."""

from hocket.trace.failure import write_failure_record
from hocket.trace.flight import GroupRecords, write_flight_record
from hocket.trace.log import logger, start_log
from hocket.trace.record import Record, decode_events

__all__ = [
    "GroupRecords",
    "Record",
    "decode_events",
    "logger",
    "start_log",
    "write_failure_record",
    "write_flight_record",
]
