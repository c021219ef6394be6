"""hocket under torch: the "hocket" backend of torch.distributed.

``torch.distributed.init_process_group("hocket")`` works without importing anything: torch calls `autoload` at its own
import, through the entry point group ``torch.backends``.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.comm import Communicator
    from hocket.torch.options import Options
    from hocket.torch.symmetric import use_symmetric_buckets

__all__ = ["Options", "autoload", "communicator", "use_symmetric_buckets"]

__getattr__ = lazy(__name__, {"Options": "options", "dist": "", "use_symmetric_buckets": "symmetric"})


def autoload() -> None:
    """Register the backend; called by ``import torch``, which an exception here would break (so it only warns)."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "HOCKET"):
            dist.Backend.register_backend("hocket", _create_process_group, extended_api=True, devices=["cpu"])
    except Exception as error:
        warnings.warn(f"the hocket backend of torch.distributed could not be registered: {error}", stacklevel=2)


def communicator(group: Any = None) -> Communicator:
    """Return the communicator under a process group whose backend is "hocket".

    Args:
        group: a process group; None for the default one.

    Raises:
        InvalidArgument: the group has another backend.
    """
    from hocket.torch.process_group import process_group_of

    return process_group_of(group).communicator


def _create_process_group(options: Any, backend_options: Any) -> Any:
    # Imported at first use: `import torch` must stay as fast as it was.
    from hocket.torch.creation import create_process_group

    return create_process_group(options, backend_options)
