"""Learning while running, where $HOCKET_LEARN asks for it."""

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
    """Return whether the environment asks for it."""
    return os.environ.get("HOCKET_LEARN") == "1"


def learn_until_finalized(comm: Communicator, *, keeps: bool) -> None:
    """Have a root communicator learn; called by all members.

    Args:
        comm: the communicator.
        keeps: whether what was learned goes into the machine's table at the end.
    """
    from hocket.tune.learn import Learner  # needs NumPy

    try:
        learner = Learner(comm)
    except InvalidArgument as error:  # a policy of the program's own: on all ranks alike
        warnings.warn(f"hocket: HOCKET_LEARN is set, but {error}; nothing is learned", stacklevel=5)
        return
    machines = comm.all_gather_object(this_machine(comm.backends, comm.num_hosts))
    if any(machine != machines[0] for machine in machines):  # tables for them would differ, and be refused
        logger.warning("what is learned is not kept, as the hosts of the ranks differ")
        keeps = False
    comm._on_finalize = _saving(learner, keeps and comm.local_rank == 0, comm._on_finalize)


def _saving(learner: Learner, saves: bool, then: Callable[[], object] | None) -> Callable[[], None]:
    def finalize() -> None:
        try:
            if saves and learner.lessons:
                logger.info("what was learned is in %s", learner.save())
        except (OSError, RuntimeError, HocketError) as error:  # a RuntimeError where there is no home
            warnings.warn(f"hocket: what was learned could not be kept: {error}", stacklevel=2)
        finally:
            if then is not None:
                then()

    return finalize
