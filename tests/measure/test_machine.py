import os
import subprocess
import sys
import time

import pytest

from hocket.measure import foreign_busy, pin, usage
from hocket.measure.core_factor import kernel_seconds
from hocket.measure.machine import Usage

pytestmark = pytest.mark.timeout(60)


def test_foreign_share_of_all_cpus():
    cpus = os.cpu_count()
    before = Usage(100.0, 1000.0, 50.0)
    assert foreign_busy(before, Usage(110.0, 1000.0 + 10 * cpus, 50.0)) == 1.0
    assert foreign_busy(before, Usage(110.0, 1000.0 + 10 * cpus, 50.0 + 10 * cpus)) == 0.0
    assert foreign_busy(before, Usage(110.0, 1000.0 + 6 * cpus, 50.0 + 4 * cpus)) == pytest.approx(0.2)
    assert foreign_busy(before, Usage(110.0, 1000.0, 50.5)) == 0.0  # clocks that disagree by ticks
    assert foreign_busy(before, before) == 0.0


def test_our_time_includes_descendants_and_not_others():
    work = "import time\nwhile time.process_time() < 0.3: pass\n"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}]); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as child:
        other = usage([child.pid])
        mine = usage([os.getpid()])
        # Bounded by the test's deadline. Less than what the grandchild used: the kernel counts in ticks of 10 ms.
        while usage([child.pid]).ours_s < 0.25:
            time.sleep(0.02)
        assert usage([os.getpid()]).ours_s - mine.ours_s >= 0.2
        assert usage([child.pid]).ours_s - other.ours_s <= usage([os.getpid()]).ours_s
        child.stdin.close()


def test_readings_only_grow():
    before = usage([os.getpid()])
    kernel_seconds()
    after = usage([os.getpid()])
    assert after.wall_s > before.wall_s and after.busy_s >= before.busy_s and after.ours_s >= before.ours_s


def test_pin_takes_the_cpus_in_turn():
    allowed = sorted(os.sched_getaffinity(0))
    script = "import os; from hocket.measure import pin; pin({rank}); print(*os.sched_getaffinity(0))"
    for rank in range(len(allowed) + 1):
        pinned = subprocess.check_output([sys.executable, "-c", script.format(rank=rank)], text=True)
        assert pinned.split() == [str(allowed[rank % len(allowed)])]
    assert sorted(os.sched_getaffinity(0)) == allowed
    assert callable(pin)
