"""The report: the tables for the terminal, and the page, the picture and the JSON file that say the same."""

import json
from dataclasses import asdict
from pathlib import Path

from figures import inline_svgs, save_picture
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from results import BACKENDS, COMPARED_STEPS, Demo, Estimate
from rich import box
from rich.table import Table

COLUMNS = (
    "backend",
    "test\naccuracy",
    "step time",
    "share of\ncommunication",
    "speed-up",
    f"loss equal,\n{COMPARED_STEPS} steps",
)
OPERATION_COLUMNS = ("operation", "type", "size", "count", "median time", "total time")


def summary_rows(demo: Demo) -> list[tuple[str, ...]]:
    """The cells of the main table, one row a backend; medians with their 95 % intervals."""
    timing = demo.timing
    return [
        (
            name,
            f"{demo.trainings[name].accuracy[-1]:.1%}",
            _with_interval(timing.step_ms[name], "{:.2f}", " ms"),
            _with_interval(timing.share[name], "{:.0%}"),
            _with_interval(timing.speed_up[name], "{:.2f}", "x") if name in timing.speed_up else "1",
            equality(demo),
        )
        for name in BACKENDS
    ]


def equality(demo: Demo) -> str:
    """Whether both runs had bitwise equal losses over the first steps, or where first not."""
    compared = min(COMPARED_STEPS, len(demo.trainings["gloo"].losses))
    return "bitwise" if demo.equal_steps >= compared else f"no (step {demo.equal_steps + 1})"


def operation_rows(demo: Demo) -> list[tuple[str, ...]]:
    """The cells of the table of operations and sizes."""
    return [
        (
            group.op,
            group.dtype,
            f"{group.nbytes:,} B",
            f"{group.count:,}",
            f"{group.median_us:,.0f} µs",
            f"{group.total_ms:,.1f} ms",
        )
        for group in demo.operations
    ]


def tables(demo: Demo) -> tuple[Table, Table]:
    """The main table and the operations seen, for the terminal."""
    main = _table("MNIST with DistributedDataParallel on 2 ranks; in brackets: 95 % interval")
    for name in COLUMNS:
        main.add_column(name, no_wrap=True)
    for row in summary_rows(demo):
        main.add_row(*row, style="bold" if row[0] == "hocket" else "")
    operations = _table("Operations and sizes that hocket saw during training (rank 0)")
    for index, name in enumerate(OPERATION_COLUMNS):
        operations.add_column(name, no_wrap=True, justify="left" if index < 2 else "right")
    for row in operation_rows(demo):
        operations.add_row(*row)
    return main, operations


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def _with_interval(estimate: Estimate, form: str, unit: str = "") -> str:
    median, low, high = (form.format(value) for value in (estimate.median, estimate.low, estimate.high))
    return f"{median}{unit}\n[{low}, {high}]"


def write_report(demo: Demo, folder: Path) -> Path:
    """Write report.html, report.json and report.png; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    values = asdict(demo) | {
        "equal_steps": demo.equal_steps,
        "shortfalls": demo.shortfalls,
        "operations": [asdict(group) for group in demo.operations],
    }
    (folder / "report.json").write_text(json.dumps(values, indent=1))
    save_picture(demo, folder / "report.png")
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = templates.get_template("page.html").render(
        demo=demo,
        columns=COLUMNS,
        rows=summary_rows(demo),
        operation_columns=OPERATION_COLUMNS,
        operation_rows=operation_rows(demo),
        pictures=inline_svgs(demo),
    )
    target = folder / "report.html"
    target.write_text(page)
    return target
