"""Call every operation of a process group of the backend argv[1] in all forms that torch declares, by position and by
keyword; write the results to the folder argv[2].
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

# methods that are not operations, and coalesced forms that gloo lacks
LEFT_OUT = {
    "_start_coalescing", "_end_coalescing",
    "monitored_barrier", "set_timeout", "recv_anysource", "split_group", "merge_remote_group", "allgather_coalesced",
    "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
}  # fmt: skip
ROOT = 0


def forms() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return every operation, and for each of its forms the names and declarations of the parameters."""
    for name in sorted(set(dir(ProcessGroup)) - LEFT_OUT):
        text = getattr(ProcessGroup, name).__doc__ or ""
        for line in text.splitlines():
            found = re.match(rf"(?:\d+\. )?{name}\(self: [\w.]+, (.*)\) -> .*c10d::Work", line)
            if found:
                parts = re.split(r", (?=\w+: )", found[1])
                yield name, [(part.partition(":")[0], part) for part in parts]


def value_of(method: str, parameter: str, declaration: str) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    x, out = torch.arange(4.0) + rank, torch.zeros(4)
    many, outs = [x + each for each in range(size)], [torch.zeros(4) for _ in range(size)]
    has_single = "Sequence[collections" not in declaration
    match parameter:
        case "opts":
            return getattr(torch._C._distributed_c10d, re.search(r"(\w+Options) object", declaration)[1])()
        case "timeout":
            return timedelta(seconds=30)
        case "op":
            return dist.ReduceOp.MAX
        case "root":
            return ROOT
        case "tag":
            return 3
        case "srcRank" | "dstRank":
            return 1 - rank
        case "output_split_sizes" | "input_split_sizes":
            return []
        case "tensor" | "input_tensor":
            return x
        case "tensors":
            return [out if method == "recv" else x]
        case "output_tensor":
            return out
        case "inputTensor":
            return torch.cat(many)
        case "outputTensor":
            return out
        case "output":
            return torch.zeros(4 * size) if "gather" in method else out
        case "input":
            return many if method == "reduce_scatter" else x
        case "output_tensors" if method in ("reduce_scatter", "scatter"):
            return [out]
        case "output_tensors":
            mine = outs if method != "gather" or rank == ROOT else []
            return mine if has_single else ([mine] if mine else [])
        case "input_tensors" if method in ("reduce_scatter", "scatter"):
            mine = many if method == "reduce_scatter" or rank == ROOT else []
            return mine if has_single else ([mine] if mine else [])
        case "input_tensors":
            return many if method == "alltoall" else [x]
    raise NotImplementedError(f"{method}: {declaration}")


def numbers(values: Any) -> list[float]:
    if isinstance(values, torch.Tensor):
        return [float(each) for each in values.flatten().tolist()]
    return [each for value in values for each in numbers(value)] if isinstance(values, (list, tuple)) else []


def main() -> None:
    backend, folder = sys.argv[1:]
    dist.init_process_group(backend, timeout=timedelta(seconds=30))
    group = dist.distributed_c10d._get_default_group()
    rank, found = dist.get_rank(), {}
    for method, parameters in forms():
        for by_name in (False, True):
            arguments = {name: value_of(method, name, declaration) for name, declaration in parameters}
            called = method
            if method in ("send", "recv") and rank == 1:  # the peer makes the opposite call
                called = "recv" if method == "send" else "send"
                arguments = {"tensors": [torch.ones(4)], "srcRank" if called == "recv" else "dstRank": 0, "tag": 3}
            call = getattr(group, called)
            key = f"{method}({', '.join(arguments)}) {'by name' if by_name else 'by position'}"
            try:
                (call(**arguments) if by_name else call(*arguments.values())).wait()
                found[key] = numbers(list(arguments.values()))
            except Exception as error:
                found[key] = type(error).__name__
                print(key, error, flush=True)
            dist.barrier()
    Path(folder, f"{backend}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
