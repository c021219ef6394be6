"""The variables of every launcher, and the name of the socket at which local ranks meet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hocket.boot.environment import World, meeting_name, read_world
from hocket.errors import BootstrapMismatch

from ..naming import raises

pytestmark = pytest.mark.timeout(30)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "a",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-1@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
ALONE = (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({}, ALONE, id="nothing set"),
        pytest.param(TORCHRUN, (5, 8, 1, 4), id="torchrun"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, (1, 2, 1, 2), id="by hand, one host"),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "LOCAL_RANK": "1"}, (1, 2, 1, 2), id="no local size"
        ),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, ALONE, id="by hand, alone"),
        pytest.param(OPEN_MPI, (3, 4, 1, 2), id="mpirun"),
        pytest.param(HYDRA, (1, 2, 1, 2), id="mpiexec"),
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1, 2), id="PMI without local numbers"),
        pytest.param(SLURM, (5, 6, 1, 2), id="srun"),
        pytest.param(
            {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x3),3", "SLURM_NODEID": "3"}, (5, 6, 1, 3), id="srun, uneven"
        ),
        pytest.param({**SLURM, "SLURM_STEP_ID": ""}, ALONE, id="sbatch, not srun"),
        pytest.param({**SLURM, "SLURM_STEP_ID": "4294967290"}, ALONE, id="salloc's own shell"),
        pytest.param({**SLURM, **HYDRA}, (1, 2, 1, 2), id="hydra's proxies under srun"),
        pytest.param({**SLURM, **OPEN_MPI, **TORCHRUN}, (5, 8, 1, 4), id="torchrun inside of others"),
    ],
)
def test_place(environ: dict[str, str], place: tuple[int, int, int, int]) -> None:
    world = read_world(environ)
    assert (world.rank, world.size, world.local_rank, world.local_size) == place


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"WORLD_SIZE": None}, ("RANK", "WORLD_SIZE")),
        ({"RANK": None}, ("WORLD_SIZE", "RANK")),
        ({"RANK": "8"}, ("RANK=8", "WORLD_SIZE=8")),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "two"}, "RANK='two'"),
        ({"RANK": ""}, "RANK=''"),
        ({"WORLD_SIZE": "1_0"}, "WORLD_SIZE='1_0'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"LOCAL_RANK": "4"}, ("LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4")),
        ({"LOCAL_WORLD_SIZE": "9"}, ("LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8")),
        ({"LOCAL_RANK": None}, ("LOCAL_WORLD_SIZE", "LOCAL_RANK")),
        ({"LOCAL_WORLD_SIZE": None}, ("LOCAL_RANK", "LOCAL_WORLD_SIZE")),
        (
            dict.fromkeys(
                ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
            ),
            ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"),
        ),
    ],
)
def test_bad_value_is_named_in_one_line(changes: dict[str, str | None], names: str | tuple[str, ...]) -> None:
    environ = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with raises(BootstrapMismatch, names=names) as caught:
        read_world(environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, HYDRA, SLURM], ids=["torchrun", "mpirun", "mpiexec", "srun"])
def test_all_ranks_of_a_job_meet(environ: dict[str, str]) -> None:
    rank_variables = {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} & set(environ)
    other = {**environ, **dict.fromkeys(rank_variables, "0")}
    assert meeting_name(read_world(environ)) == meeting_name(read_world(other))


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        *((TORCHRUN, name) for name in TORCHRUN if name.startswith(("MASTER", "TORCHELASTIC"))),
        (TORCHRUN, "HOCKET_JOB"),
        (OPEN_MPI, "PMIX_NAMESPACE"),
        (OPEN_MPI, "MASTER_PORT"),
        (SLURM, "SLURM_JOB_ID"),
        (SLURM, "SLURM_STEP_ID"),
    ],
)
def test_two_jobs_never_meet(environ: dict[str, str], changed: str) -> None:
    other = read_world({**environ, changed: "1234"})
    assert meeting_name(read_world(environ)) != meeting_name(other)


def test_generations_never_meet() -> None:
    world = World(rank=0, size=2, local_rank=0, local_size=2, job="a")
    names = {meeting_name(world, generation) for generation in range(3)}
    assert len(names) == 3
    assert all(name.startswith("hocket-") and "\0" not in name and len(name) < 107 for name in names)


def test_processes_of_hydra_find_their_common_proxy() -> None:
    # Two shells act as wrapper scripts of one job: the ranks have different parents, but one common ancestor.
    rank = "from hocket.boot.environment import read_world; print(read_world().job)"
    wrapped = f'"$0" -c "{rank}"; true'
    script = "; ".join(f"PMI_RANK={n} PMI_SIZE=2 sh -c '{wrapped}' '{sys.executable}'" for n in range(2))
    proxy = f"printf hydra_pmi_proxy > /proc/$$/comm; {script}"
    jobs = [
        subprocess.run(["sh", "-c", proxy], capture_output=True, text=True, check=True, timeout=20).stdout.split()
        for _ in range(2)
    ]
    assert [len(set(job)) for job in jobs] == [1, 1]
    assert jobs[0] != jobs[1]


def test_own_variables_are_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "LOCAL_", "OMPI_", "PMI", "SLURM")):
            monkeypatch.delenv(name)
    assert read_world().size == 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert read_world().rank == 1


def test_rank_without_a_number_of_ranks_is_no_world_of_one() -> None:
    """Open MPI's prterun sets only the rank, unless its personality is that of mpirun."""
    with raises(BootstrapMismatch, names=("PMIX_RANK", "mpirun", "--personality ompi")):
        read_world({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-a-1@1"})
    assert read_world({**OPEN_MPI, "PMIX_RANK": "3"}).rank == 3
