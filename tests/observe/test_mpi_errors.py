"""Programs of MPI that go on after an error: with the hooks they get the same answers as without them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hocket.bench.launchers import wheel_file

from .mpi_jobs import operations, run_executable

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler"),
]

# What a failed call does not set keeps what the caller had there. The codes are classes of errors.
_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
enum { kUnset = 1 << 28 };
static int class_of(int code) {
  int found = 0;
  MPI_Error_class(code, &found);
  return found;
}
int main(int argc, char** argv) {
  double x[10] = {1}, y[10];
  int rank, index = kUnset, flag = 1, number = 1 << 20, *indices = malloc(64);
  MPI_Status status, statuses[2];
  MPI_Request pending, planned, wrong[2];
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Irecv(y, 10, MPI_DOUBLE, 1 - rank, 1, MPI_COMM_WORLD, &pending);
  MPI_Send_init(x, 2, MPI_DOUBLE, 1 - rank, 1, MPI_COMM_WORLD, &planned);
  wrong[0] = wrong[1] = (MPI_Request)0x7f123456;
  char path[1000];
  snprintf(path, sizeof path, "%s/result-%d.json", getenv("TEST_FOLDER"), rank);
  FILE* file = fopen(path, "w");
  fprintf(file, "[%d", class_of(MPI_Waitany(2, wrong, &index, &status)));
  fprintf(file, ",%d", class_of(MPI_Testany(2, wrong, &index, &flag, MPI_STATUS_IGNORE)));
  fprintf(file, ",%d", class_of(MPI_Waitsome(2, wrong, &number, indices, statuses)));
  number = 1 << 20;
  fprintf(file, ",%d", class_of(MPI_Testsome(2, wrong, &number, indices, MPI_STATUSES_IGNORE)));
  fprintf(file, ",%d", class_of(MPI_Startall(-1, &planned)));
  fprintf(file, ",%d", class_of(MPI_Waitall(-1, wrong, statuses)));
  // An error of another call leaves what is in flight.
  wrong[0] = pending;
  index = 0;
  fprintf(file, ",%d", class_of(MPI_Waitany(2, wrong, &index, &status)));
  fprintf(file, ",%d", class_of(MPI_Isend(x, 1, MPI_DOUBLE, 99, 0, MPI_COMM_WORLD, &wrong[0])));
  MPI_Start(&planned);
  MPI_Wait(&planned, MPI_STATUS_IGNORE);
  fprintf(file, ",%d", class_of(MPI_Wait(&pending, &status)));
  MPI_Get_count(&status, MPI_DOUBLE, &number);
  fprintf(file, ",%d]", number);
  fclose(file);
  MPI_Request_free(&planned);
  MPI_Finalize();
  return 0;
}
"""


def test_errors_are_returned_as_without_the_hooks(tmp_path: Path) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_PROGRAM)
    library, header = wheel_file("mpich", "libmpi.so.12"), wheel_file("mpich", "mpi_abi.h")
    folders = [f"-I{Path(header).parent}", f"-Wl,-rpath,{Path(library).parent}"]
    subprocess.run(["gcc", str(source), "-o", str(program), library, *folders], check=True, timeout=100)
    results = {}
    for observe in (None, "comm"):
        folder = tmp_path / str(observe)
        folder.mkdir()
        job = run_executable("mpich", program, folder, variables={}, observe=observe)
        results[observe] = job.results
    assert results["comm"] == results[None]
    assert json.loads(json.dumps(results[None][0]))[-2:] == [0, 2] and 0 not in results[None][0][:6]
    for rank, snapshot in enumerate(job.recordings):
        found = [(each["kind"], each["nbytes"], each["peer"], each["state"]) for each in operations(snapshot)]
        assert found == [
            ("recv", 16, 1 - rank, "completed"), ("send", 8, 99, "failed"), ("send", 16, 1 - rank, "completed")
        ]  # fmt: skip
        totals = snapshot.histograms[snapshot.histograms["layer"] == 0]
        assert [int(totals[name].sum()) for name in ("count", "failed", "nbytes")] == [3, 1, 16 + 8 + 16]
