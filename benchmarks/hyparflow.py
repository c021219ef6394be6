"""Images a second of ResNet-110-v2 and ResNet-1001-v2 (3,339 Keras layers), by one process and by several.

The same images a step in every way: one process, Keras alone; copies of the model on two and four ranks, beside
DistributedDataParallel; the model cut in two; two copies of the model cut in two, on four ranks. What 128 nodes would
do is a model: the simulator's time of the step, with what the stages cost here and links of 100 Gbit/s between nodes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median

from hyparflow_rank import ALONE, MODELLED, NODES, NUM_RANKS, OF_KERAS, OF_TORCH, WAYS, Size
from libraries import job

from hocket.measure import (
    Comparison,
    Coordinator,
    Key,
    Measurement,
    Row,
    Settings,
    finish,
    judge,
    measure,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)

RANK_SCRIPT = Path(__file__).with_name("hyparflow_rank.py")
MODELS = {110: Size(110, 32, 32), 1001: Size(1001, 16, 16)}  # the deeper one's activations fill a machine's memory


def rows_of(depth: int, settings: Settings, folder: Path) -> tuple[list[Row], Measurement]:
    arguments = [*map(str, MODELS[depth]), str(folder)]
    with (
        Coordinator(
            [job("hocket", RANK_SCRIPT, arguments, NUM_RANKS)], start_timeout_s=900.0, run_timeout_s=600.0
        ) as coordinator,
        progress(f"ResNet-{depth}-v2") as on_round,
    ):
        measured = measure(coordinator, settings, on_round=on_round)
    (case,) = {key.case for key in measured.iterations}
    rows = [judge(measured, Comparison(case, ALONE, (OF_KERAS,), label=f"{case}: {ALONE}", unit="ms"))]
    for name, (num_ranks, _) in WAYS.items():
        if name == ALONE:
            continue
        others = [ALONE]
        if "data" in name:
            others += [OF_TORCH] if num_ranks == 2 else []
        else:
            others.append(f"data, {num_ranks} ranks")
        for other in others:
            rows.append(judge(measured, Comparison(case, name, (other,), label=f"{case}: {name}", unit="ms")))
    return [*rows, *modelled_rows(measured, case, folder), *null_rows(measured, "ms")], measured


def modelled_rows(measured: Measurement, case: str, folder: Path) -> list[Row]:
    """Steps of as many images a node on many nodes, simulated; and on one, beside the step that was measured."""
    rows = []
    for name in MODELLED:
        seconds = {int(nodes): each for nodes, each in json.loads((folder / "modelled.json").read_text())[name].items()}
        here = median(each.seconds[Key(case, name)] for each in measured.rounds)
        rows.append(shown(f"{case}: {name}, MODELLED on 1 node", "measured", seconds[1], here, here / seconds[1]))
        for nodes in NODES[1:]:
            ratio = nodes * seconds[1] / seconds[nodes]
            label = f"{case} a node: {name}, MODELLED on {nodes} nodes, images a second"
            rows.append(shown(label, "modelled 1 node", seconds[nodes], seconds[1], ratio))
    return rows


def shown(case: str, rival: str, ours: float, theirs: float, ratio: float) -> Row:
    return Row(case, rival, 1e3 * ours, 1e3 * theirs, "ms", ratio, None, None, None)


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--depth", type=int, action="append", choices=tuple(MODELS), help="may be repeated")
    options = parser.parse_args()
    rows: list[Row] = []
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for depth in options.depth or MODELS:
            found, measured = rows_of(depth, settings_of(options), Path(folder))
            rows += found
            measurements.append(measured)
    if not options.json:
        for measured in measurements:
            for key in measured.iterations:
                seconds = median(each.seconds[key] for each in measured.rounds)
                print(f"{key.case}, {key.name}: {int(key.case.split()[-2]) / seconds:.1f} images a second")
    claim = "training steps of deep residual networks: data, model and hybrid, by the same number of images a step"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
