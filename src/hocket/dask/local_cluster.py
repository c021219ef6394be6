"""`distributed.LocalCluster` over hocket's protocol."""

from __future__ import annotations

from typing import Any

import distributed


class LocalCluster(distributed.LocalCluster):
    """A scheduler and workers on this machine that exchange data through shared memory.

    Args:
        arguments, options: those of `distributed.LocalCluster`; only the default of `protocol` differs. With
            ``processes=False`` the workers are threads of this process, and Dask hands them references.

    Examples:
        >>> with hk.dask.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        ...     with cluster.get_client() as client:
        ...         print(client.submit(sum, [1, 2]).result())
        3
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        names_protocol = options.get("protocol") is not None or "://" in (options.get("host") or "")
        if not names_protocol and options.get("processes") is not False:
            options["protocol"] = "hocket://"
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
