"""Generate docs/errors.md from tests/mistakes: python tools/errors_page.py. A test compares the page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.mistakes import page
from tests.mistakes.commands import COMMANDS
from tests.mistakes.outcomes import of_command, of_statements
from tests.mistakes.statements import ALONE, BETWEEN


def main() -> None:
    outcomes = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (groups, num_ranks) in enumerate(((ALONE, 1), (BETWEEN, 2))):
            mistakes = [each for group in groups.values() for each in group]
            folder = Path(name) / f"statements-{number}"
            folder.mkdir()
            for mistake, by_rank in zip(mistakes, of_statements(mistakes, num_ranks, folder), strict=True):
                outcomes[mistake] = by_rank[mistake.ranks[0] if num_ranks > 1 else 0]
        for number, mistake in enumerate(each for group in COMMANDS.values() for each in group):
            if page.is_shown(mistake):
                folder = Path(name) / str(number)
                folder.mkdir()
                outcomes[mistake] = of_command(mistake, folder)
    page.PAGE.write_text(page.make(outcomes))


if __name__ == "__main__":
    main()
