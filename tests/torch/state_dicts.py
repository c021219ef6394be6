"""State dicts of an FSDP2 model and its optimizer with every option of torch: ``state_dicts.py BACKEND``.

Rank 0 prints one line of JSON: for each case, the sum of all numbers or the type of the error. The results over gloo
are the expected ones.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=20))
OPTIONS = [each.name for each in dataclasses.fields(StateDictOptions)]


def make(*, is_frozen: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model[1].bias.requires_grad_(not is_frozen)
    fully_shard(model)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.1)
    model(torch.ones(3, 6) * (dist.get_rank() + 1)).sum().backward()
    optimizer.step()
    return model, optimizer


def total(state: Any) -> float:
    """Return the sum of all numbers in a state, over all ranks' parts."""
    if isinstance(state, Mapping):
        return sum(total(each) for each in state.values())
    if isinstance(state, (list, tuple)):
        return sum(total(each) for each in state)
    if hasattr(state, "full_tensor"):
        state = state.full_tensor()
    return float(state.double().sum()) if isinstance(state, torch.Tensor) else 0.0


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return round(total(run()), 6)
    except Exception as error:
        return type(error).__name__


def round_trip(options: StateDictOptions) -> Any:
    """Copy the state of one model into another."""
    model, optimizer = make(is_frozen=options.ignore_frozen_params)
    states = get_state_dict(model, optimizer, options=options)
    other, its_optimizer = make(is_frozen=options.ignore_frozen_params)
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    set_state_dict(other, its_optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)
    return get_model_state_dict(other), get_optimizer_state_dict(other, its_optimizer)


def model_alone(options: StateDictOptions) -> Any:
    model, _ = make(is_frozen=options.ignore_frozen_params)
    state = get_model_state_dict(model, options=options)
    if options.broadcast_from_rank0 and dist.get_rank() != 0:
        state = {}
    other, _ = make(is_frozen=options.ignore_frozen_params)
    set_model_state_dict(other, state, options=options)
    return get_model_state_dict(other)


def optimizer_alone(options: StateDictOptions) -> Any:
    model, optimizer = make(is_frozen=options.ignore_frozen_params)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    if options.broadcast_from_rank0 and dist.get_rank() != 0:
        state = {}
    set_optimizer_state_dict(model, optimizer, state, options=options)
    return get_optimizer_state_dict(model, optimizer)


def saved(save: Callable[..., Any], folder: str) -> Any:
    model, _ = make()
    state = {"model": get_model_state_dict(model)}
    saving = save(state, checkpoint_id=folder)
    if hasattr(saving, "result") and callable(saving.result):
        saving.result()
    dist.barrier()
    other, _ = make()
    loaded = {"model": {name: torch.zeros_like(each) for name, each in get_model_state_dict(other).items()}}
    dcp.load(loaded, checkpoint_id=folder)
    return loaded


def main() -> None:
    outcomes: dict[str, Any] = {"is for processors": torch.device("cpu") in dist.group.WORLD._device_types}
    flags = [name for name in OPTIONS if isinstance(getattr(StateDictOptions(), name), bool)]
    outcomes["options"] = OPTIONS
    cases = [(), *((flag,) for flag in flags), ("full_state_dict", "cpu_offload", "broadcast_from_rank0")]
    for chosen in cases:
        if chosen == ("broadcast_from_rank0",):  # torch supports it with full state dicts only
            chosen = ("full_state_dict", *chosen)
        options = StateDictOptions(**{name: not getattr(StateDictOptions(), name) for name in chosen})
        # If both states come from rank 0 in one call, torch waits for a message that is never sent.
        runs = (
            (model_alone, optimizer_alone)
            if options.broadcast_from_rank0
            else (round_trip, model_alone, optimizer_alone)
        )
        for run in runs:
            outcomes[f"{run.__name__} {' '.join(chosen)}"] = outcome(lambda run=run, options=options: run(options))
    with tempfile.TemporaryDirectory() as own:
        folders = [own]
        dist.broadcast_object_list(folders, 0)
        for save in (dcp.save, dcp.async_save):
            folder = os.path.join(folders[0], save.__name__)
            outcomes[save.__name__] = outcome(lambda save=save, folder=folder: saved(save, folder))
        dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(outcomes), flush=True)
    dist.destroy_process_group()


main()
