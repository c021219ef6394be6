"""Make the report: tables for the terminal, and a page, a picture and a JSON file with the same content."""

import json
from dataclasses import asdict
from pathlib import Path

from figures import inline_svgs, save_picture
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from results import BACKENDS, COMPARED_STEPS, Demo, Mix
from rich import box
from rich.table import Table
from wording import WITHHELD, share_text, speed_text, timing_texts

COLUMNS = (
    "backend",
    "test\naccuracy",
    "step time",
    "share of\ncommunication",
    "speed-up",
    f"loss equal,\n{COMPARED_STEPS} steps",
)
MIX_COLUMNS = ("over", "measured", "predicted by the table")
CHOICE_COLUMNS = ("operation", "type", "size", "times per step", "library")
OPERATION_COLUMNS = ("operation", "type", "size", "count", "median time", "total time")


def summary_rows(demo: Demo) -> list[tuple[str, ...]]:
    """Return the cells of the main table, one row per backend: medians with their 95 % intervals."""
    return [
        (
            name,
            f"{demo.trainings[name].accuracy[-1]:.1%}",
            *timing_texts(demo.timing, name),
            equality(demo),
        )
        for name in BACKENDS
    ]


def markdown_table(demo: Demo) -> str:
    """Return the main table for README; the picture stores it, which proves that both are from one run."""
    rows = (COLUMNS, ("---",) * len(COLUMNS), *summary_rows(demo))
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows)


def equality(demo: Demo) -> str:
    """Return whether both runs had bitwise equal losses over the first steps, or the first step that differs."""
    compared = min(COMPARED_STEPS, len(demo.trainings["gloo"].losses))
    return "bitwise" if demo.equal_steps >= compared else f"no (step {demo.equal_steps + 1})"


def operation_rows(demo: Demo) -> list[tuple[str, ...]]:
    """Return the cells of the table of operations and sizes."""
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
    """Return the main table and the table of recorded operations, for the terminal."""
    main = _table("MNIST with DistributedDataParallel on 2 ranks; in brackets: 95 % interval")
    for name in COLUMNS:
        main.add_column(name, no_wrap=True)
    for row in summary_rows(demo):
        main.add_row(*row, style="bold" if row[0] == "hocket" and demo.is_faster else "")
    operations = _table("Operations and sizes that hocket recorded during training (rank 0)")
    for index, name in enumerate(OPERATION_COLUMNS):
        operations.add_column(name, no_wrap=True, justify="left" if index < 2 else "right")
    for row in operation_rows(demo):
        operations.add_row(*row)
    return main, operations


def mix_rows(mix: Mix) -> list[tuple[str, ...]]:
    """Return the cells of the table of step times, one row per library and per mix."""
    return [
        (
            name,
            WITHHELD if mix.too_busy else _microseconds(seconds),
            _microseconds(mix.predicted_seconds[name]),
        )
        for name, seconds in mix.seconds.items()
    ]


def choice_rows(mix: Mix) -> list[tuple[str, ...]]:
    """Return the cells of the table of the mix's choices."""
    return [(op, dtype, f"{nbytes:,} B", f"{count:,}", backend) for op, dtype, nbytes, count, backend in mix.chosen]


def mix_tables(demo: Demo) -> list[Table | str]:
    """Return for each set of libraries the step times, the mix's choices, and the conclusion."""
    blocks: list[Table | str] = []
    for title, mix in demo.mixes.items():
        times = _table(f"Communication of one step of a mixture of experts: {title}")
        for index, name in enumerate(MIX_COLUMNS):
            times.add_column(name, no_wrap=True, justify="left" if index == 0 else "right")
        for row in mix_rows(mix):
            times.add_row(*row)
        choices = _table(f"What the mix chose: {title}")
        for index, name in enumerate(CHOICE_COLUMNS):
            choices.add_column(name, no_wrap=True, justify="right" if index in (2, 3) else "left")
        for row in choice_rows(mix):
            choices.add_row(*row)
        blocks += [times, choices, f"{mix.conclusion}\n"]
    return blocks


def _microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:,.0f} µs"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def write_report(demo: Demo, folder: Path) -> Path:
    """Write report.html, report.json and report.png; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    values = asdict(demo) | {
        "equal_steps": demo.equal_steps,
        "shortfalls": demo.shortfalls,
        "operations": [asdict(group) for group in demo.operations],
    }
    (folder / "report.json").write_text(json.dumps(values, indent=1))
    save_picture(demo, folder / "report.png", description=markdown_table(demo))
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = templates.get_template("page.html").render(
        demo=demo,
        columns=COLUMNS,
        rows=summary_rows(demo),
        operation_columns=OPERATION_COLUMNS,
        operation_rows=operation_rows(demo),
        mixes=[(title, mix, mix_rows(mix), choice_rows(mix)) for title, mix in demo.mixes.items()],
        mix_columns=MIX_COLUMNS,
        choice_columns=CHOICE_COLUMNS,
        share_text=share_text,
        speed_text=speed_text,
        pictures=inline_svgs(demo),
    )
    target = folder / "report.html"
    target.write_text(page)
    return target
