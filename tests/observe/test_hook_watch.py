"""Whose libraries are compared with the hooks: descendants of the command, and of every recorded process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hocket.observe.hook_watch import HookWatch
from hocket.observe.processes import descendants_of

pytestmark = pytest.mark.timeout(60)
# Maps a file with the name of torch's library, and starts no hooks.
LOADS = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
WAITS = "print('ready', flush=True); sys.stdin.read()"
STARTS = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"


@contextmanager
def _program(*arguments: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_task_that_is_no_descendant_of_the_command(tmp_path: Path) -> None:
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(4096))
    with _program("import sys\n" + WAITS) as command, _program(STARTS, LOADS + WAITS, str(library)) as task:
        watch = HookWatch(command)
        watch.look()
        assert watch.problems == []
        watch.look([task])
        watch.look([task, command])
        (child,) = set(descendants_of(task)) - {task}
        assert len(watch.problems) == 1 and str(child) in watch.problems[0] and "LD_PRELOAD" in watch.problems[0]
        found = descendants_of(command, task, child)
        assert sorted(found) == sorted({command, task, child})
