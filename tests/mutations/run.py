"""Puts one bug after the other into a copy of the project, and sees whether `make test` catches it.

    python -m tests.mutations.run [--only ID] [--again] [--own-room] [--hurry] [--list]

The tests of the room with the bug run first; of what they miss, those of the other rooms, until one fails. What is
known already is not run again: results stand in build/mutations, and hold as long as the sources and the tests that
caught the bug are what they were. Exit code 0: all are caught; 1: one survives; 2: the tests do not pass without any
bug, or a bug does not fit.
"""

from __future__ import annotations

import argparse
import difflib
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence

from .catalogue import ROOT, BadMutation, Mutation, load
from .copied_project import CopiedProject
from .results import GREEN, MISSED, Result, Results
from .rooms import Run, fingerprint, in_order, rooms, run_room, run_tests

_FOLDER = ROOT / "build" / "mutations"
_WHOSE_CODE = "tests/mutations/test_whose_code.py"
_FIRST_DEADLINE_S = 1200.0  # of a room that was never run
_CONFIRM_DEADLINE_S = 300.0
_MOST_FLAKY = 3  # tests of a room that fail now and then without the bug


class FailsWithoutBug(Exception):
    """The tests do not pass without a bug."""


class Hunt:
    """Looks for the test that catches a bug.

    Args:
        project: the copy.
        results: what is known.
        is_again: whether what is known is found out again.
        is_hurrying: whether rooms are not run as a whole without the bug first.

    Raises:
        FailsWithoutBug: what is started in the copy, ranks too, does not run the code of the copy.
    """

    def __init__(
        self, project: CopiedProject, results: Results, *, is_again: bool = False, is_hurrying: bool = False
    ) -> None:
        self._project, self._results = project, results
        self._is_again, self._is_hurrying = is_again, is_hurrying
        self._rooms = rooms(project.root)
        log = _FOLDER / "whose-code.log"
        found = run_tests(project.python, project.root, [_WHOSE_CODE], deadline_s=_CONFIRM_DEADLINE_S, log=log)
        if found.kind != "passed" or "passed" not in log.read_text():
            raise FailsWithoutBug(f"the code of another checkout runs in {project.root}; see {log}")

    def run(self, mutation: Mutation, *, others: bool) -> Result | None:
        """Return what caught one; None where nothing did.

        Args:
            mutation: to catch.
            others: whether by the tests of other rooms than its own.
        """
        root = self._project.root
        stands_on = {room: fingerprint(root, room, mutation) for room in self._rooms}
        without = {room: fingerprint(root, room) for room in self._rooms}
        order = in_order(mutation, self._rooms, self._results.seconds())[others]
        left = [
            room for room in order if self._is_again or not self._results.is_missed(mutation, room, stands_on[room])
        ]
        if not left:
            return None
        with self._project.mutated(mutation):
            for room in left:
                began_s = time.monotonic()
                usual = self._look_without(mutation, room, without[room])
                found = self._look(mutation, room, 60.0 + 4 * usual.seconds, usual.test.splitlines())
                kind = MISSED if found.kind == "passed" else found.kind
                result = Result(mutation.id, room, kind, found.test, time.monotonic() - began_s, stands_on[room])
                self._results.add(result)
                if kind != MISSED:
                    return result
                tell(f"    not by {room}, {found.seconds:.0f} s")
        return None

    def _look(self, mutation: Mutation, room: str, deadline_s: float, flaky: list[str]) -> Run:
        """Run the tests of a room but the flaky ones; what fails has to pass without the bug, or does not count."""
        most_flaky = len(flaky) + _MOST_FLAKY
        log = _FOLDER / f"{mutation.id}.log"
        while True:
            found = run_room(
                self._project.python, self._project.root, room, mutation, deadline_s=deadline_s, log=log, without=flaky
            )
            if found.kind == "passed":
                return found
            with self._project.unmutated_for_a_while(mutation):
                without = run_tests(
                    self._project.python, self._project.root, [found.test or _WHOSE_CODE],
                    deadline_s=_CONFIRM_DEADLINE_S, log=_FOLDER / "confirmed.log",
                )  # fmt: skip
            if without.kind == "passed":
                return found
            if not found.test:
                raise FailsWithoutBug(f"pytest does not work in {self._project.root}; see {log}")
            tell(f"    {found.test} fails without the bug, too")
            flaky.append(found.test)
            if len(flaky) > most_flaky:
                raise FailsWithoutBug(f"too many tests of {room} fail now and then without any bug; see {log}")

    def _look_without(self, mutation: Mutation, room: str, stands_on: str) -> Result:
        """Make sure that the tests of a room pass without the bug. One that fails on a busy machine, and passes by
        itself, is left out; `Result.test` names those."""
        known = self._results.green(room, stands_on)
        if known is not None:
            return known
        if self._is_hurrying:
            usual_s = self._results.seconds().get(room, _FIRST_DEADLINE_S / 4)
            return Result(GREEN, room, "not run", "", usual_s, "")
        python, root = self._project.python, self._project.root
        log = _FOLDER / f"without-{room.replace(' ', '-')}.log"
        with self._project.unmutated_for_a_while(mutation):
            found = run_room(python, root, room, mutation, deadline_s=_FIRST_DEADLINE_S, log=log, stops=False)
            if found.kind not in ("passed", "test"):
                raise FailsWithoutBug(f"the tests of {room} fail without any bug: {found.kind} {found.test}; see {log}")
            for test in found.failed:
                again = run_tests(python, root, [test], deadline_s=_CONFIRM_DEADLINE_S, log=_FOLDER / "confirmed.log")
                if again.kind != "passed":
                    raise FailsWithoutBug(f"{test} fails without any bug; see {log}")
                tell(f"    {test} fails now and then without any bug, and is left out")
        tell(f"    {room} passes without, {found.seconds:.0f} s")
        green = Result(GREEN, room, "passed", "\n".join(found.failed), found.seconds, stands_on)
        self._results.add(green)
        return green


def tell(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def table(mutations: Sequence[Mutation], found: Mapping[str, Result], survivors: Collection[str]) -> str:
    """Return what became of each."""
    width = max(len(each.id) for each in mutations)
    lines = [f"{'mutation':<{width}}  {'room':<12}  seconds  caught by"]
    for each in mutations:
        result = found.get(each.id)
        how, seconds = "SURVIVES" if each.id in survivors else "not run to the end", ""
        if result is not None:
            how, seconds = result.test or f"tests of {result.room}", f"{result.seconds:.0f}"
            how += "" if result.kind == "test" else f" ({result.kind})"
        lines.append(f"{each.id:<{width}}  {each.room:<12}  {seconds:>7}  {how}")
    return "\n".join(lines)


def main() -> int:
    arguments = _read_arguments()
    everything = load()
    mutations = [each for each in everything if not arguments.only or each.id in arguments.only]
    if unknown := sorted(set(arguments.only) - {each.id for each in everything}):
        ids = [each.id for each in everything]
        near = difflib.get_close_matches(unknown[0], ids, cutoff=0.5) or ids
        tell(f"there is no mutation {unknown[0]!r}; there is {', '.join(near)}")
        return 2
    if arguments.list:
        print("\n".join(f"{each.id:<36} {each.file:<45} {each.why}" for each in mutations))
        return 0
    # A shell starts its background jobs with SIGINT ignored; and either ends what was started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = Results(_FOLDER / "results.jsonl")
    found: dict[str, Result] = {}
    if not arguments.again:
        known = {each.id: results.caught(ROOT, each) for each in mutations}
        found = {id: result for id, result in known.items() if result is not None}
    survivors: set[str] = set()
    code = 0
    try:
        if len(found) < len(mutations):
            hunt = Hunt(CopiedProject(tell=tell), results, is_again=arguments.again, is_hurrying=arguments.hurry)
            _run_all(hunt, mutations, results, found, survivors, own_room_only=arguments.own_room)
            code = int(bool(survivors))
    except BlockingIOError:
        tell("another run uses the copy of the project")
        return 2
    except (BadMutation, FailsWithoutBug) as error:
        tell(str(error))
        code = 2
    except KeyboardInterrupt:
        code = 130
    print(table(mutations, found, survivors))
    return code


def _run_all(
    hunt: Hunt,
    mutations: Sequence[Mutation],
    results: Results,
    found: dict[str, Result],
    survivors: set[str],
    own_room_only: bool,
) -> None:
    """Look for what catches each: in its own room, and what is left then elsewhere."""
    for others in (False,) if own_room_only else (False, True):
        left = [each for each in mutations if each.id not in found]
        for number, mutation in enumerate(left):
            left_s = results.mean_seconds(others) * (len(left) - number)
            where = "the other rooms" if others else f"its room, {mutation.room}"
            tell(f"[{number + 1}/{len(left)}] {mutation.id} in {where}; about {left_s / 60:.0f} min left")
            result = hunt.run(mutation, others=others)
            if result is not None:
                found[mutation.id] = result
                tell(f"    caught by {result.test or result.room} ({result.kind}), {result.seconds:.0f} s")
            elif others or own_room_only:
                survivors.add(mutation.id)
                tell("    SURVIVES")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutations.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="this one alone; may be repeated")
    parser.add_argument("--again", action="store_true", help="also those that were caught already")
    parser.add_argument("--own-room", action="store_true", help="not by the tests of other rooms")
    parser.add_argument(
        "--hurry", action="store_true", help="do not run whole rooms without the bugs; a test that fails still is"
    )
    parser.add_argument("--list", action="store_true", help="show them, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
