"""The demo: one training program over gloo and over hocket, compared in a table, a picture and a page.

What `make demo` runs; with --quick it takes half a minute and judges no accuracy.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from report import tables, write_report
from results import BACKENDS, Demo, describe_machine, read_timing, read_training
from rich.console import Console

HERE = Path(__file__).parent
RANKS = 2
GRACE_S = 12.0  # the launcher needs 8 s to end ranks that do not react


def launch(script: str, *args: str) -> None:
    """Run a script of this folder on all ranks; returns when it has ended well.

    Raises:
        subprocess.CalledProcessError: it failed; its own error is already on the screen.
    """
    launcher = Path(sys.executable).with_name("hocket")
    command = [str(launcher), "run", "-n", str(RANKS), str(HERE / script), *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # A process group of its own: Ctrl-C reaches only us, and we hand it on exactly once.
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
    try:
        code = child.wait()
    except BaseException:
        stop(child)
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupt the launcher, which ends its ranks; kill it when that takes too long or Ctrl-C comes again."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()  # its ranks die with it
        child.wait()


def measure(console: Console, epochs: int, rounds: int) -> Demo:
    """Both trainings to the end, then the timing job with both backends in the same processes."""
    with tempfile.TemporaryDirectory(prefix="hocket-demo-") as folder:
        outputs = {name: Path(folder, f"{name}.json") for name in (*BACKENDS, "timing")}
        for number, name in enumerate(BACKENDS, start=1):
            console.rule(f"{number}/3  training over {name}", align="left")
            launch("train.py", "--backend", name, "--epochs", str(epochs), "--out", str(outputs[name]))
        console.rule("3/3  step time, both backends in the same two processes", align="left")
        launch("compare.py", "--rounds", str(rounds), "--out", str(outputs["timing"]))
        trainings = {name: read_training(outputs[name]) for name in BACKENDS}
        return Demo(trainings, read_timing(outputs["timing"]), describe_machine())


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one epoch and few rounds, to see that all of it works")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    console = Console()
    started = time.monotonic()
    try:
        demo = measure(console, epochs=1 if args.quick else 12, rounds=9 if args.quick else 61)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; all processes are ended, no report was written")
        return 130
    except subprocess.CalledProcessError as error:
        console.print(f"[red]no report: exit code {error.returncode} of[/] {shlex.join(error.cmd)}")
        return 1
    page = write_report(demo, args.out)
    console.print(*tables(demo), sep="\n")
    if demo.caution:
        console.print(f"[yellow]{demo.caution}")
    console.print(f"Report: {page.resolve()} ({time.monotonic() - started:.0f} s in all)", soft_wrap=True)
    shortfalls = [] if args.quick else demo.shortfalls
    for shortfall in shortfalls:
        console.print(f"[red]The demo falls short: {shortfall}")
    return 1 if shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
