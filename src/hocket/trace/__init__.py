"""What was done: records of operations, and the record that a failing rank leaves."""

from hocket.trace.failure import write_failure_record
from hocket.trace.record import Record, decode_events

__all__ = ["Record", "decode_events", "write_failure_record"]
