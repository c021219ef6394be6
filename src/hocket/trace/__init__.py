"""Records of operations, of this process and of others, and the files that a failing rank writes."""

from hocket.trace.attach import RecorderPlace, find_recorders
from hocket.trace.end_status import EndStatus
from hocket.trace.event_check import FIRST_FOREIGN_KIND, are_events
from hocket.trace.failure import write_failure_record
from hocket.trace.flight import GroupRecords, write_flight_record
from hocket.trace.io_totals import IoTotals, ReadWritten
from hocket.trace.log import logger, start_log
from hocket.trace.operations import RecordedOperation, operations_in
from hocket.trace.record import EVENT_FIELDS, EVENT_STATES, Record, decode_events
from hocket.trace.region import RINGS, Definition, Owner, RecorderSnapshot, Ring, read_recorder

__all__ = [
    "EVENT_FIELDS",
    "EVENT_STATES",
    "FIRST_FOREIGN_KIND",
    "RINGS",
    "Definition",
    "EndStatus",
    "GroupRecords",
    "IoTotals",
    "Owner",
    "Record",
    "RecordedOperation",
    "ReadWritten",
    "RecorderPlace",
    "RecorderSnapshot",
    "Ring",
    "are_events",
    "decode_events",
    "find_recorders",
    "logger",
    "operations_in",
    "read_recorder",
    "start_log",
    "write_failure_record",
    "write_flight_record",
]
