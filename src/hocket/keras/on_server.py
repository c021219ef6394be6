"""Makes a Keras optimizer in the process of a parameter server. Does not import Keras before it has set the backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hocket.keras.server_part import KerasPart

if TYPE_CHECKING:
    from hocket.keras.server_update import KerasServerUpdate


def restored(part: KerasPart) -> KerasServerUpdate:
    """Return the update by a part, in a server's process, which has not imported Keras yet."""
    os.environ["KERAS_BACKEND"] = "torch"
    from hocket.keras.server_update import KerasServerUpdate

    return KerasServerUpdate(part)
