"""What hocket records of itself: actions of a training, measured contenders, and changes of sampling."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import hocket as hk
from hocket.measure import Contender, Team
from hocket.observe import SavedProcess, events_in, open_run, record_run
from hocket.pipeline import Action
from hocket.trace import find_recorders

from ..program import run_python

pytestmark = pytest.mark.timeout(180)

# Every rank writes the actions of its table beside the script. In the second table, messages are actions.
_TRAINING = """
import json, sys
from pathlib import Path
import torch
import hocket as hk
from hocket.train import MicroBatch, PipelineExecutor

torch.set_num_threads(1)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))


with hk.init() as comm:
    tables = []
    schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=4)
    for table in (schedule, hk.pipeline.lower_messages(schedule, "rendezvous")):
        split = hk.train.graph_of(model()).split([0, 1, 2])
        batch = [MicroBatch({"input": torch.ones(2, 2)}, torch.zeros(2, 1), weight=0.25) for _ in range(4)]
        with PipelineExecutor(table, split, comm, torch.nn.functional.mse_loss) as executor:
            for _ in range(2):
                executor.step(batch)
            executor.forward(batch)
            layout = executor.layout
            tables.append([[str(each) for each in actions] for actions in (layout.actions, layout.forward_actions)])
    Path(sys.argv[1], f"rank-{comm.rank}.json").write_text(json.dumps(tables))
    network = model()
    hk.train.fit(
        network, (torch.ones(24, 2), torch.ones(24, 1)), loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1), batch_size=8, comm=comm, show_progress=False,
    )
"""


def _names(process: SavedProcess) -> list[tuple[str, int]]:
    """Name and step of the regions, by their begin; all must have completed."""
    events = process.events["program"]
    assert set(events["state"]) == {3}
    return [
        (process.snapshot.names["region", int(each["comm"]), 0], int(each["aux"]))
        for each in sorted(events, key=lambda event: int(event["t_begin"]))
    ]


def _action_of(name: str) -> Action | None:
    return Action.parse(name.rpartition(" ")[2])


def test_the_actions_of_a_training_are_those_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(_TRAINING)
    monkeypatch.setenv("HOCKET_RECORDER_BUDGET", "all")
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(tmp_path / "script.py"), str(tmp_path)]
    assert record_run(command, tmp_path / "run", layers=["comm"]).exit_code == 0
    found = [each for each in open_run(tmp_path / "run").processes if each.snapshot.owner.rank is not None]
    assert [each.snapshot.owner.rank for each in found] == [0, 1]
    for rank, process in enumerate(found):
        names = _names(process)
        ends = [number for number, (name, _) in enumerate(names) if name in ("training step", "evaluation step")]
        assert [names[end] for end in ends[:6]] == [
            ("training step", 0), ("training step", 1), ("evaluation step", 2),
        ] * 2  # fmt: skip
        steps = [names[begin:end] for begin, end in zip(ends, [*ends[1:], len(names)], strict=True)]
        tables: list[list[list[str]]] = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        for place, (training, forward) in enumerate(tables):
            for step, actions in zip(steps[3 * place : 3 * place + 3], (training, training, forward), strict=True):
                number = step[0][1]
                parsed = [(str(_action_of(name)), at) for name, at in step if _action_of(name)]
                assert parsed == [(action, number) for action in actions]
                messages = [name for name, _ in step if name.partition(" ")[0] in ("send", "receive")]
                messages = [name for name in messages if not _action_of(name)]
                # Rank 0 sends activations and receives gradients; rank 1 the other way round.
                sent, came = ("activation", "gradient") if rank == 0 else ("gradient", "activation")
                assert messages.count(f"send {sent}") == (4 if sent == "activation" or actions is training else 0)
                assert messages.count(f"receive {came}") == (4 if came == "activation" or actions is training else 0)
                assert len(messages) == messages.count(f"send {sent}") + messages.count(f"receive {came}")
        optimizer = [at for name, at in names if name == "optimizer step"]
        assert optimizer == [0, 1, 2]
        assert [at for name, at in names if name == "gradients of copies"] == [0, 1, 0, 1, 0, 1, 2]


def _latest_events(most: int) -> list[Any]:
    return events_in(find_recorders(os.getpid())[0].read(), most)


def test_samples_of_contenders_are_regions() -> None:
    clock: list[int] = []

    def tick() -> float:
        clock.append(len(_regions("measure sum, test of regions")))
        return float(len(clock))

    team = Team([Contender.of_call("test of regions", "sum", lambda: sum([1, 2]))], clock=tick)
    seconds = [team.run(team.contenders[0], 10)[0] for _ in range(3)]
    assert seconds == [1.0] * 3
    assert clock == [1, 1, 2, 2, 3, 3]  # the region has begun before the time is taken, and ends after it
    assert [each.state for each in _regions("measure sum, test of regions")] == ["completed"] * 3


def _regions(name: str) -> list[Any]:
    return [each for each in _latest_events(200) if each.name == name]


# The least budget there is: marks cost more after some milliseconds.
_SAMPLED = """
import os, time
from hocket import observe
from hocket.observe import events_in
from hocket.trace import find_recorders

until = time.monotonic() + 60
while time.monotonic() < until:
    for _ in range(2000):
        observe.mark("often")
    snapshot = find_recorders(os.getpid())[0].read()
    changes = [each for each in events_in(snapshot, 4096) if each.name == "sampling of program"]
    if len(changes) >= 3:
        break
assert [each.value for each in changes[:3]] == [2.0, 4.0, 8.0], changes
for each in changes:
    assert (each.ring, each.state, each.weight, each.number, each.target) == ("process", "completed", 1, 0, "")
ring = snapshot.rings["program"]
assert ring.issued == ring.recorded + ring.sampled_out + ring.dropped and ring.sampled_out > 0
weights = [int(event["weight_log2"]) for event in ring.events]
assert weights == sorted(weights) and set(weights) <= set(range(len(changes) + 1)), set(weights)
print(len(changes))
"""


def test_a_change_of_sampling_is_an_event(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SAMPLED)
    done = run_python(str(script), environment={**os.environ, "HOCKET_RECORDER_BUDGET": "0.0001"}, timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3


def test_transfers_of_virtual_ranks_are_not_recorded() -> None:
    def run(comm: hk.Communicator) -> float:
        import numpy as np

        comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
        return comm.records()[-1].seconds or 0.0

    def issued() -> int:
        return find_recorders(os.getpid())[0].read().rings["transfers"].issued

    hk.init().finalize()  # so that this process has a recorder
    before = issued()
    seconds = hk.simulate(run, 4, fabric=hk.sim.Link(1e-6, 1e-9)).results
    assert len(set(seconds)) == 1 and issued() == before
