"""Learning while the program runs, enabled by HOCKET_LEARN=1."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from hocket.comm import Communicator
from hocket.errors import HocketError, InvalidArgument
from hocket.trace import logger
from hocket.tune.machine import this_machine

if TYPE_CHECKING:
    from hocket.tune.learn import Learner


def is_learning_asked_for() -> bool:
    """Return whether the environment enables learning."""
    return os.environ.get("HOCKET_LEARN") == "1"


def learn_until_finalized(comm: Communicator, *, saves: bool) -> None:
    """Let a root communicator learn; called by all members.

    Args:
        comm: the communicator.
        saves: whether to save the learned choices in the machine's table when it is finalized.
    """
    from hocket.tune.learn import Learner  # needs NumPy

    try:
        learner = Learner(comm)
    except InvalidArgument as error:  # the program has its own policy, on all ranks
        warnings.warn(f"hocket: HOCKET_LEARN is set, but learning is off: {error}", stacklevel=5)
        return
    machines = comm.all_gather_object(this_machine(comm.backends, comm.num_hosts))
    if any(machine != machines[0] for machine in machines):  # their tables would differ, and be refused
        logger.warning("learned choices are not saved: the hosts of the ranks differ")
        saves = False
    comm._on_finalize = _save_at_finalize(learner, saves and comm.local_rank == 0, comm._on_finalize)


def _save_at_finalize(learner: Learner, saves: bool, then: Callable[[], object] | None) -> Callable[[], None]:
    def finalize() -> None:
        try:
            if saves and learner.lessons:
                logger.info("learned choices are saved in %s", learner.save())
        except (OSError, RuntimeError, HocketError) as error:  # RuntimeError: no home directory
            warnings.warn(f"hocket: learned choices could not be saved: {error}", stacklevel=2)
        finally:
            if then is not None:
                then()

    return finalize
