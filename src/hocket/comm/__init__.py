"""The communicator: a group of ranks, their operations, and how groups are made from groups."""

from hocket.comm.communicator import Communicator
from hocket.comm.fabric import Backends, JobFabric, JobLayout
from hocket.comm.messages import PROC_NULL, Recv, Send
from hocket.comm.policy import Policy
from hocket.comm.reductions import register_reduction
from hocket.comm.waiting import wait_all, wait_any, wtime

__all__ = [
    "PROC_NULL",
    "Backends",
    "Communicator",
    "JobFabric",
    "JobLayout",
    "Policy",
    "Recv",
    "Send",
    "register_reduction",
    "wait_all",
    "wait_any",
    "wtime",
]
