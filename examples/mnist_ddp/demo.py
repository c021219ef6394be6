"""Compare one training program over gloo and over hocket, and the traffic of a mixture of experts over single libraries
and over a mix of them. The report is a table, a picture and a page.

`make demo` runs this script. With --quick it takes half a minute and does not check the accuracy.
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

from report import mix_tables, tables, write_report
from results import BACKENDS, Demo, Mix, describe_machine, read_mix, read_timing, read_training
from rich.console import Console

HERE = Path(__file__).parent
RANKS = 2
MIXES = {"all libraries": "shm,gloo,mpi", "foreign libraries only": "gloo,mpi"}
GRACE_S = 12.0  # the launcher needs 8 s to end ranks that do not respond


def launch(script: str, *args: str) -> None:
    """Run a script of this folder on all ranks and wait for its end.

    Raises:
        subprocess.CalledProcessError: The script failed; its own error is already on the screen.
    """
    hocket("run", "-n", str(RANKS), str(HERE / script), *args)


def hocket(*args: str, out: Path | None = None) -> None:
    """Run the hocket command, with its standard output written to `out` if given; raise as `launch` does."""
    command = [str(Path(sys.executable).with_name("hocket")), *args]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    # A process group of its own: Ctrl-C reaches only this process, which forwards it exactly once.
    output = out.open("w") if out else None
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, process_group=0)
    try:
        code = child.wait()
    except BaseException:
        stop(child)
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupt the launcher, which ends its ranks; kill it after GRACE_S or at a second Ctrl-C."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()  # its ranks end with it
        child.wait()


def measure(console: Console, epochs: int, rounds: int) -> Demo:
    """Run both trainings, the timing job with both backends in the same processes, and the mixes."""
    with tempfile.TemporaryDirectory(prefix="hocket-demo-") as folder:
        outputs = {name: Path(folder, f"{name}.json") for name in (*BACKENDS, "timing")}
        for number, name in enumerate(BACKENDS, start=1):
            console.rule(f"{number}/5  training over {name}", align="left")
            launch("train.py", "--backend", name, "--epochs", str(epochs), "--out", str(outputs[name]))
        console.rule("3/5  step time, both backends in the same two processes", align="left")
        launch("compare.py", "--rounds", str(rounds), "--out", str(outputs["timing"]))
        trainings = {name: read_training(outputs[name]) for name in BACKENDS}
        mixes = compare_mixes(console, Path(folder), rounds=9)
        return Demo(trainings, read_timing(outputs["timing"]), describe_machine(), mixes)


def compare_mixes(console: Console, folder: Path, rounds: int) -> dict[str, Mix]:
    """Train a mixture of experts for 60 steps, and replay its traffic over all libraries and over foreign ones only."""
    traffic = folder / "moe.json"
    console.rule("4/5  training a mixture of experts, to record its traffic", align="left")
    launch("../moe.py", "--steps", "60", "--traffic", str(traffic))
    mixes = {}
    for number, (title, backends) in enumerate(MIXES.items()):
        console.rule(f"5/5  its traffic over {title}", align="left")
        result = folder / f"mix-{number}.json"
        hocket("tune", "compare", str(traffic), "--backends", backends, "--rounds", str(rounds), "--json", out=result)
        mixes[title] = read_mix(result)
    return mixes


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one epoch and few rounds, to check that everything works")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    console = Console()
    started = time.monotonic()
    try:
        demo = measure(console, epochs=1 if args.quick else 12, rounds=9 if args.quick else 61)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; all processes have ended, no report was written")
        return 130
    except subprocess.CalledProcessError as error:
        console.print(f"[red]no report: exit code {error.returncode} from[/] {shlex.join(error.cmd)}")
        return 1
    page = write_report(demo, args.out)
    console.print(*tables(demo), *mix_tables(demo), sep="\n")
    if demo.caution:
        console.print(f"[yellow]{demo.caution}")
    console.print(f"Report: {page.resolve()} ({time.monotonic() - started:.0f} s in total)", soft_wrap=True)
    shortfalls = [] if args.quick else demo.shortfalls
    for shortfall in shortfalls:
        console.print(f"[red]The demo missed a requirement: {shortfall}")
    return 1 if shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
