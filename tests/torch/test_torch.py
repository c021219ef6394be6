"""The "hocket" backend of torch.distributed, against definitions and against gloo."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hocket.torch.devices import _OPERATIONS
from hocket.torch.process_group import HocketProcessGroup

from ..load import scaled
from ..naming import assert_names
from ..program import run_on_two_hosts, run_python
from ..tier import full, sample
from .call_forms import ROOT
from .ddp_modes import LATE_OPTIONS, LIKE, MODES, NOT_FOR_CPUS, WITHOUT_EFFECT
from .parallel import FORMS
from .unseen import WAYS

HERE = Path(__file__).parent


def run(num_ranks: int, script: str, *args: str, launcher: str = "hocket", timeout_s: float = 150) -> str:
    """Run a script of this folder as a job; fail with its output."""
    if launcher == "hocket":
        command = ["-m", "hocket.cli", "run", "-n", str(num_ranks), str(HERE / script), *args]
    else:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks),
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(HERE / script), *args]  # fmt: skip
    job = run_python(*command, timeout_s=timeout_s)
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


@pytest.mark.timeout(300)
def test_state_dicts_and_checkpoints_are_those_of_gloo() -> None:
    """With all options of torch.distributed.checkpoint.state_dict, save and async_save."""
    told = {name: json.loads(run(2, "state_dicts.py", name)) for name in ("gloo", "hocket", "cpu:hocket")}
    assert told["hocket"] == told["gloo"] == told["cpu:hocket"]
    outcomes = [each for name, each in told["gloo"].items() if name not in ("options", "is for processors")]
    assert sum(isinstance(each, float) for each in outcomes) > len(outcomes) / 2
    assert told["gloo"]["is for processors"] and len(outcomes) > 2 * len(told["gloo"]["options"])


@pytest.mark.timeout(200)
def test_other_devices_have_backends_of_their_own() -> None:
    assert run(2, "other_devices.py").count("done") == 2


def test_every_operation_of_a_group_is_dispatched_by_device() -> None:
    """A new method of the class must be dispatched by device, or be named here."""
    others = {
        "abort", "allocate_tensor", "get_group_store", "getBackendName", "getGroupDesc", "getGroupName",
        "merge_remote_group", "monitored_barrier", "options", "setGroupDesc", "setGroupName", "set_timeout", "shutdown",
        "split_group", "_get_backend", "_get_sequence_number_for_group", "_set_default_timeout",
        "_set_sequence_number_for_group", "_wait_for_pending_works",
    }  # fmt: skip
    own = {name for name in vars(HocketProcessGroup) if hasattr(torch.distributed.ProcessGroup, name)}
    own |= {name for name in vars(HocketProcessGroup) if not name.startswith("_")}
    assert {name for name in own if not name.startswith("__")} - others == set(_OPERATIONS)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("backend", ["hocket", "gloo"])
def test_timeout_that_is_set_later(backend: str) -> None:
    assert run(2, "set_timeout.py", backend) == "over in time\n"


@pytest.mark.timeout(200)
def test_profilers_show_what_they_show_of_gloo() -> None:
    """Asynchronous events, also of blocking operations, from issue to end; shapes; and no self time."""
    ours, theirs = (
        json.loads(run(2, "profile_events.py", backend, str(scaled(0.03)))) for backend in ("hocket", "gloo")
    )
    for events in (seen["events"] for seen in theirs.values()):
        emulated = [["all_reduce", True, [[4]]]] * 2  # how gloo scatters sums
        for event in emulated:
            events.remove(event)
        events += [["reduce_scatter", *event[1:]] for event in emulated]
        events.sort()
    assert ours == theirs
    for seen in ours.values():
        assert len(seen["events"]) == 29 and all(is_async for _, is_async, _ in seen["events"])
        assert seen["late"] == ["all_reduce", "recv"] and seen["self time"] == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_operations(num_ranks: int) -> None:
    assert run(num_ranks, "operations.py", "hocket").count("done") == num_ranks


@pytest.mark.timeout(200)
def test_operations_under_torchrun() -> None:
    assert run(2, "operations.py", "hocket", launcher="torchrun").count("done") == 2


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("num_ranks", "launcher"), [pytest.param(2, "torchrun", marks=full), (3, "hocket")])
def test_every_operation_on_a_backend_of_its_own(num_ranks: int, launcher: str) -> None:
    assert run(num_ranks, "dist_calls.py", launcher=launcher).count("done") == num_ranks


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_form_gives_what_gloo_gives(tmp_path: Path, num_ranks: int) -> None:
    for backend in ("gloo", "hocket"):
        assert run(num_ranks, "forms.py", backend, str(tmp_path)).count("done") == num_ranks
    for rank in range(num_ranks):
        theirs, ours = (torch.load(tmp_path / f"{backend}-{rank}.pt") for backend in ("gloo", "hocket"))
        assert len(theirs) > 20 and theirs.keys() <= ours.keys()
        for name, tensors in theirs.items():
            for ours_, theirs_ in zip(ours[name], tensors, strict=True):
                assert torch.equal(ours_, theirs_), f"rank {rank}, {name}: {ours_} instead of {theirs_}"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_types_that_are_carried_as_others_and_lists_of_a_wrong_length(num_ranks: int) -> None:
    assert run(num_ranks, "carried_types.py").count("done") == num_ranks


@full
@pytest.mark.timeout(200)
def test_types_and_lists_on_two_hosts() -> None:
    assert run_on_two_hosts(1, HERE / "carried_types.py").count("done") == 2


@pytest.mark.timeout(200)
def test_two_hosts(tmp_path: Path) -> None:
    """Between hosts gloo carries the operations, and the results equal gloo's own bit for bit."""
    assert run(2, "forms.py", "gloo", str(tmp_path)).count("done") == 2
    assert run_on_two_hosts(1, HERE / "forms.py", "hocket", str(tmp_path)).count("done") == 2
    for rank in range(2):
        theirs, ours = (torch.load(tmp_path / f"{backend}-{rank}.pt") for backend in ("gloo", "hocket"))
        assert {name for name in theirs if "any source" not in name} <= ours.keys()
        for name in theirs.keys() & ours.keys():
            pairs = zip(ours[name], theirs[name], strict=True)
            assert all(torch.equal(*pair) for pair in pairs), f"rank {rank}, {name}"
    assert run_on_two_hosts(2, HERE / "operations.py", "hocket").count("done") == 4


@pytest.mark.timeout(100)
def test_two_hosts_need_more_than_shared_memory() -> None:
    said = run_on_two_hosts(1, HERE / "operations.py", "hocket", fails=True, HOCKET_BACKENDS="shm")
    for error in ("BackendUnavailable", "BootstrapMismatch"):
        (line, *_) = [line for line in said.splitlines() if f"{error}: " in line]
        assert_names(line, "'shm'", "1", "2")


@full
@pytest.mark.timeout(200)
def test_a_transformer_has_the_losses_of_gloo(tmp_path: Path) -> None:
    for backend in ("gloo", "hocket"):
        assert run(2, "transformer.py", backend, str(tmp_path)).count("done") == 2
    for rank in range(2):
        theirs, ours = (json.loads((tmp_path / f"{backend}-{rank}.json").read_text()) for backend in ("gloo", "hocket"))
        assert theirs.keys() == {"ddp", "fsdp", "tensor_parallel"} and ours == theirs


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=full)])
def test_buffers_in_shared_memory(num_ranks: int) -> None:
    assert run(num_ranks, "symmetric.py").count("done") == num_ranks


@pytest.mark.timeout(200)
@full
def test_elastic_restart_under_torchrun(tmp_path: Path) -> None:
    """A rank dies in the middle of a step; torchrun restarts all ranks, and they continue from their checkpoint."""
    plain = run(2, "elastic.py", "gloo", str(tmp_path / "gloo"), launcher="torchrun")
    for how in ("raise", "kill"):
        folder = tmp_path / how
        job = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2",
             "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
             str(HERE / "elastic.py"), "hocket", str(folder), how],
            capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        assert job.returncode == 0, job.stdout + job.stderr
        assert sorted(line for line in job.stdout.splitlines() if "losses" in line) == sorted(plain.splitlines())
        assert (folder / "died").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=full)])
def test_parallel_training_gives_the_losses_of_gloo(tmp_path: Path, num_ranks: int) -> None:
    for backend in ("gloo", "hocket"):
        assert run(num_ranks, "parallel.py", backend, str(tmp_path)).count("done") == num_ranks
    for rank in range(num_ranks):
        theirs, ours = (json.loads((tmp_path / f"{backend}-{rank}.json").read_text()) for backend in ("gloo", "hocket"))
        assert theirs.keys() == FORMS.keys()
        for name, losses in theirs.items():
            # the sum of two numbers is rounded equally; for four numbers gloo rounds otherwise, also in 16 bits
            expected = losses if num_ranks == 2 else pytest.approx(losses, rel=1e-3)
            assert ours[name] == expected, f"rank {rank}, {name}"


def test_every_form_of_a_call_gives_what_gloo_gives(tmp_path: Path) -> None:
    """By position and by name, with and without an options object, in all forms that torch declares."""
    for backend in ("gloo", "hocket"):
        assert run(2, "call_forms.py", backend, str(tmp_path)).count("done") == 2
    for rank in range(2):
        theirs, ours = (json.loads((tmp_path / f"{backend}-{rank}.json").read_text()) for backend in ("gloo", "hocket"))
        assert len(theirs) >= 58 and not [name for name, found in theirs.items() if isinstance(found, str)]
        if rank != ROOT:  # gloo leaves partial sums in the arrays of the ranks without a result
            theirs |= {name: ours[name] for name in theirs if name.startswith("reduce(")}
        assert ours == theirs


@pytest.mark.timeout(200)
def test_what_a_group_has_besides_operations_is_as_over_gloo() -> None:
    """All members of torch's group and backend classes: split, merged, coalesced, or refused by name."""
    theirs, ours = (json.loads(run(2, "other_calls.py", backend).splitlines()[-1]) for backend in ("gloo", "hocket"))
    assert theirs["unnamed"] == ours["unnamed"] == []
    more = {
        "_start_coalescing, _end_coalescing": [3.0, 21.0],
        "_wait_for_pending_works": None,
        "allocate_tensor": 3,
        "supports_tensor_alloc": True,
    } | {
        "abort": None,
        "merge_remote_group": [2, "again", "all", [3.0, 3.0]],
        "merge_remote_group, too few": "refused",
        "shutdown": None,
        "split_group": [3.0, 3.0],
        "split_group, again": [3.0, 3.0],
        "split_group, names": [True, 2, "both", "two", "hocket"],
        "split_group, nobody": "refused",
        "split_group, too many": "refused",
        "split_group, twice": "refused",
    }
    assert len(theirs["ranks"]) == 2
    for rank, (over_gloo, over_hocket) in enumerate(zip(theirs["ranks"], ours["ranks"], strict=True)):
        of_rank = {"split_group, one": [1.0, 1.0] if rank == 1 else None}
        assert len(over_gloo) >= 38 and over_hocket == over_gloo | more | of_rank


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str, int], dict[str, list[float]]]:
    """Return losses by (number of ranks, backend, rank)."""
    found = {}
    for num_ranks in (2, 4):
        folder = tmp_path_factory.mktemp(f"losses-{num_ranks}")
        for backend in ("gloo", "hocket"):
            run(num_ranks, "ddp_losses.py", backend, str(folder))
            for rank in range(num_ranks):
                found[num_ranks, backend, rank] = json.loads((folder / f"{backend}-{rank}.json").read_text())
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("model", ["convolutional", "transformer"])
def test_ddp_losses_are_bitwise_those_of_gloo_with_two_ranks(losses: dict, model: str) -> None:
    for rank in range(2):
        ours, theirs = losses[2, "hocket", rank][model], losses[2, "gloo", rank][model]
        assert len(ours) == 50 and all(math.isfinite(loss) for loss in ours)
        assert ours == theirs


@pytest.mark.timeout(400)
@pytest.mark.parametrize("model", ["convolutional", "transformer"])
def test_ddp_losses_agree_with_gloo_with_four_ranks(losses: dict, model: str) -> None:
    for rank in range(4):
        ours, theirs = losses[4, "hocket", rank][model][:10], losses[4, "gloo", rank][model][:10]
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.timeout(400)
def test_every_mode_of_ddp_has_the_losses_of_gloo(tmp_path: Path) -> None:
    always = ["small-static", "small-two-reentrant", "unused-static-turns", "compiled", *LIKE.values()]
    names = sample(MODES, 30, always)
    for backend in ("gloo", "hocket"):
        assert run(2, "ddp_modes.py", backend, str(tmp_path), *names, timeout_s=190).count("done") == 2
    for rank in range(2):
        theirs, ours = (json.loads((tmp_path / f"{backend}-{rank}.json").read_text()) for backend in ("gloo", "hocket"))
        assert list(theirs) == names
        theirs |= {name: theirs[other] for name, other in LIKE.items() if name in theirs}
        assert {name: ours[name] for name in names if ours[name] != theirs[name]} == {}, f"rank {rank}; right: {theirs}"


_ABSENT = ["small-static", "post_local-static", "small-two-reentrant", "small-static-two-reentrant", "waiting_hook",
           "several_in_one_hook-static", "hook-ALLREDUCE", "small-collective_after_backward", "unused-found-views",
           "fused-static", "small"]  # fmt: skip


@pytest.mark.timeout(100)
@pytest.mark.parametrize("mode", sample(_ABSENT, 0, always=["small-static"]))
@pytest.mark.parametrize("num_steps", sample([0, 2], 0, always=[0]))
def test_no_wait_for_a_bucket_outlives_its_deadline(mode: str, num_steps: int) -> None:
    # the deadline of `run` stops a program that hangs; this test does not check the time of a step
    assert run(2, "absent_in_backward.py", mode, str(num_steps), timeout_s=60).count("left") == 1


@pytest.mark.timeout(100)
@pytest.mark.parametrize("way", sample(WAYS, 0, always=["followed", "handled in a callback"]))
@pytest.mark.parametrize("end", sample(["destroyed", "left"], 0, always=["left"]))
def test_a_failure_that_nobody_waited_for_fails_the_job(way: str, end: str) -> None:
    is_told = "waited for" in way or "handled" in way
    # fresh interpreters: forked programs end in another way, without the core's exit code
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(HERE / "unseen.py"), way, end]
    job = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert job.returncode == (0 if is_told else 1), job.stdout + job.stderr
    assert ("caught PeerFailure" in job.stdout) == is_told
    assert "PeerFailure" in job.stdout + job.stderr


def test_modes_give_every_option_of_ddp() -> None:
    given = {option for mode in MODES.values() for option in mode.options} | LATE_OPTIONS
    options = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    assert given | NOT_FOR_CPUS | WITHOUT_EFFECT == set(options) - {"module"}


@pytest.mark.timeout(100)
def test_backend_is_there_without_importing_hocket() -> None:
    code = (
        "import sys, torch.distributed as dist; assert dist.Backend.HOCKET == 'hocket';"
        "print(sorted(name for name in sys.modules if name.startswith('hocket')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=90)
    # `import torch` must only register the backend
    assert done.stdout.strip() == "['hocket', 'hocket.lazy_names', 'hocket.torch']"


@pytest.mark.timeout(100)
def test_a_broken_registration_does_not_break_import_torch() -> None:
    code = (
        "import sys, types, warnings; warnings.simplefilter('error', ImportWarning)\n"
        "import torch.distributed as dist, hocket.torch\n"
        "del dist.Backend.HOCKET\n"
        "dist.Backend.register_backend = None\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    hocket.torch.autoload()\n"
        "assert 'hocket' in str(caught[0].message) and 'torch.distributed' in str(caught[0].message), caught\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
