"""The "hocket" backend of torch.distributed.

``torch.distributed.init_process_group("hocket")`` works without importing hocket: ``import torch`` calls `autoload`,
through the entry point group ``torch.backends``.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.comm import Communicator
    from hocket.torch.compressed_fsdp import CompressedShards, compress_fsdp
    from hocket.torch.compressed_hook import CompressedState, compressed, ok_topk, power_sgd
    from hocket.torch.compressed_saved import reshard_residuals
    from hocket.torch.options import Options
    from hocket.torch.symmetric import use_symmetric_buckets

__all__ = [
    "CompressedShards",
    "CompressedState",
    "Options",
    "autoload",
    "communicator",
    "compress_fsdp",
    "compressed",
    "ok_topk",
    "power_sgd",
    "reshard_residuals",
    "use_symmetric_buckets",
]

__getattr__ = lazy(
    __name__,
    {
        **dict.fromkeys(("CompressedShards", "compress_fsdp"), "compressed_fsdp"),
        **dict.fromkeys(("CompressedState", "compressed", "ok_topk", "power_sgd"), "compressed_hook"),
        "reshard_residuals": "compressed_saved",
        "Options": "options",
        "dist": "",
        "use_symmetric_buckets": "symmetric",
    },
)


def autoload() -> None:
    """Register the "hocket" backend; ``import torch`` calls it.

    A failure only warns, since an exception would break ``import torch``.

    Examples:
        >>> import torch.distributed
        >>> hk.torch.autoload()  # import torch has called it already; further calls change nothing
        >>> torch.distributed.Backend.HOCKET
        'hocket'
    """
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "HOCKET"):
            dist.Backend.register_backend("hocket", _create_process_group, extended_api=True, devices=["cpu"])
    except Exception as error:
        warnings.warn(f"the hocket backend of torch.distributed could not be registered: {error}", stacklevel=2)


def communicator(group: Any = None) -> Communicator:
    """Return the communicator under a process group whose backend is "hocket".

    Args:
        group: a process group; None: the default group.

    Raises:
        InvalidArgument: the group has another backend.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("communicator", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> x = torch.ones(3)
        >>> torch.distributed.all_reduce(x)
        >>> [(record.op, record.nbytes) for record in hk.torch.communicator().records()]
        [('all_reduce', 12)]
        >>> torch.distributed.destroy_process_group()
    """
    from hocket.torch.process_group import process_group_of

    return process_group_of(group).communicator


def _create_process_group(options: Any, backend_options: Any) -> Any:
    # Imported at first use, so that `import torch` stays as fast as without hocket.
    from hocket.torch.creation import create_process_group

    return create_process_group(options, backend_options)
