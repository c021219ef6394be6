"""The communicator: a group of ranks, their operations, and how groups are made from groups."""

from hocket.comm.communicator import Communicator

__all__ = ["Communicator"]
