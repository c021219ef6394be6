"""The verdicts on a recorded run, the costliest first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hocket.comm.policy import format_nbytes
from hocket.observe.analysis.contention import contentions
from hocket.observe.analysis.efficiency import hidden_waits
from hocket.observe.analysis.foreign_load import foreign_loads
from hocket.observe.analysis.hangs import ENDED_WITH_JOB, ending_signal, hangs, state_of
from hocket.observe.analysis.links import LinkLoad, link_loads
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.stragglers import UNFINISHED, stragglers
from hocket.observe.analysis.waits import wait_states

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.contention import Contention
    from hocket.observe.analysis.foreign_load import ForeignLoad
    from hocket.observe.analysis.hangs import Hang, MissingRank
    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun

_LEAST_SHARE = 0.02
"""Of the time of the waiting ranks; what costs less is no finding."""
_LEAST_LOST_S = 0.01
_LEAST_DEVIATIONS = 4.0
"""By so many standard deviations a rank that is late now and then must have kept the others waiting longer than if each
of them were late as often."""
_USUAL_SHARE = 0.9
"""Of all waits; longer ones count as this one where it matters who is late as a rule."""
_LEAST_FOREIGN_SHARE = 0.05
_LEAST_HANG_S = 1.0
_LEAST_HIDDEN_SHARE = 0.1
"""Of the waits for a rank; where less may be hidden behind computation, nothing is said of it."""
_LEAST_LINK_SHARE = 0.05
_LEAST_LIMIT_SHARE = 0.8
"""Of what its queue lets through; a device that carries less, though its connections wait, is not the limit itself."""
_LEAST_LINK_S = 0.1
_LEAST_RTT_RATIO = 2.0
"""A link that is full lets packets wait: round trips are longer than over an idle one."""
_LEAST_OTHER_SHARE = 0.1
_FOREIGN_LOAD = "foreign load"
ORDER = {"death": 0, "hang": 0, _FOREIGN_LOAD: 2}
"""What comes first; all other kinds are between them."""
MIDDLE = 1
_NOT_RUNNING, _WAITING = "not running", "waiting for a CPU"
_DOING = {
    _NOT_RUNNING: "it was not running", _WAITING: "it was waiting for a CPU",
    UNFINISHED: "its own asynchronous operations went on",
}  # fmt: skip


@dataclass(frozen=True)
class RunFinding:
    """A verdict.

    Args:
        kind: "death", "hang", "straggler", "bottleneck", "contention" or "foreign load".
        seconds: that all ranks together lost by it; of a bottleneck, in which its host waited for the network; of
            foreign load, seconds of processors.
        layer: where the cause is: "computation", "I/O", "messages", "unfinished operations", "network", "waiting for a
            CPU", "not running" or "program".
        process: place in `ObservedRun.processes` of the process that caused it; None: none alone.
        text: what was found, in one sentence.
        evidence: the numbers behind it, by name; an interval that is infinite says that there was too little to tell.
        is_certain: False if events were lost, so that what seems to be missing may only not be recorded.

    Examples:
        >>> from hocket import observe
        >>> observe.RunFinding("hang", 8.0, "program", 2, "rank 2 was stopped", {}, True).kind
        'hang'
    """

    kind: str
    seconds: float
    layer: str
    process: int | None
    text: str
    evidence: Mapping[str, float | str]
    is_certain: bool


def findings(run: ObservedRun) -> tuple[RunFinding, ...]:
    """Return what ended a run, and then what cost it the most time, the worst first; foreign load comes last.

    Args:
        run: from `open_run`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-findings")
        >>> [each.kind for each in observe.findings(observe.open_run("run-without-findings")) if each.process]
        []
    """
    operations = operations_of(run)
    return findings_in(run, operations, wait_states(run, operations))


def findings_in(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> tuple[RunFinding, ...]:
    """Return the findings of a run whose operations and waits are known."""
    loads = [load for load in foreign_loads(run) if load.share >= _LEAST_FOREIGN_SHARE]
    links = [*_of_links(run, operations)]
    found = [
        *(each for hang in hangs(run, operations) if (each := _of_hang(run, operations, hang)) is not None),
        # Where a link is the limit, operations end late because of it.
        *(each for each in _of_stragglers(run, operations, waits, loads) if not links or each.layer != UNFINISHED),
        *links,
        *map(_of_contention, contentions(run, operations, waits)),
        *map(_of_load, loads),
    ]
    return tuple(sorted(found, key=lambda each: (ORDER.get(each.kind, MIDDLE), -each.seconds)))


def _of_hang(run: ObservedRun, operations: RunOperations, hang: Hang) -> RunFinding | None:
    """Return the finding of a hang. A short wait for a dead rank is reported, too, unless all were killed."""
    communicator = operations.communicators[hang.comm]
    label = communicator.label
    states = {state_of(run.processes[communicator.processes[rank]]) for rank in hang.waiting}
    died = [each for each in hang.missing if each.state == "was killed"] if states != {"was killed"} else []
    is_left = not hang.missing and states == {"ended"}  # asynchronous, and nobody waited for its end
    if is_left or (not died and hang.waited_s < _LEAST_HANG_S):
        return None
    culprit = next((each for each in (*died, *hang.missing)), None)
    is_running = culprit is None or culprit.state not in ("was killed", "stopped")
    late = "; ".join(_describe_missing(run, each) for each in hang.missing) or "all ranks have begun it"
    waiting = f"rank{'s' if len(hang.waiting) > 1 else ''} {_ranks(hang.waiting)}"
    return RunFinding(
        kind="death" if died else "hang",
        seconds=hang.waited_s * len(hang.waiting),
        layer="program" if is_running else _NOT_RUNNING,
        process=culprit.process if culprit else None,
        text=f"{waiting} waited {hang.waited_s:.3g} s in {hang.kind} number {hang.number} on {label}: {late}",
        evidence={
            "waited_s": hang.waited_s,
            "number": hang.number,
            "missing_ranks": _ranks([each.rank for each in hang.missing]),
        },
        is_certain=not _has_lost(run),
    )


def _describe_missing(run: ObservedRun, missing: MissingRank) -> str:
    ended_by = ending_signal(run)
    state = {
        "running": "was still running",
        "ended": "had ended",
        "not recorded": "was not recorded",
        "was killed": f"was killed{f' (the job ended with {ended_by.name})' if ended_by else ''}",
        ENDED_WITH_JOB: f"was still running when {ended_by.name if ended_by else 'a signal'} ended the job",
    }.get(missing.state, missing.state)
    came = "has begun none" if missing.last_number is None else f"came to number {missing.last_number}"
    instead = f", where it began {missing.other_kind} instead" if missing.other_kind else ""
    doing = f", in {missing.doing}" if missing.doing else ""
    return f"rank {missing.rank} {state}, and {came}{instead}{doing}"


def _of_stragglers(
    run: ObservedRun, operations: RunOperations, waits: WaitStates, loads: list[ForeignLoad]
) -> Iterator[RunFinding]:
    import numpy as np

    if not len(waits.rows):
        return
    begin = operations.rows["begin"][waits.rows["row"]]
    duration_s = float(begin.max() - begin.min())
    num_ranks = len(np.unique(waits.rows["process"]))
    # A long wait now and then, such as that at the start, says nothing about who is late as a rule.
    usual = waits.rows["wait"].clip(max=_usual_wait(waits.rows["wait"]))
    totals = np.bincount(waits.rows["group"], weights=usual).astype(np.float64)
    direct = np.bincount(waits.rows["late_process"], weights=usual, minlength=len(run.processes))
    late, wait_s, hidden_s = waits.rows["late_process"], waits.rows["wait"], hidden_waits(operations, waits)
    busy_hosts = {load.host for load in loads}
    available_s = duration_s * (num_ranks - 1)
    for each in stragglers(run, operations, waits):
        deviations = _deviations(float(direct[each.process]), totals, num_ranks)
        share = each.imposed_s / available_s if available_s else 0.0
        process = run.processes[each.process]
        is_preempted = each.layer == _WAITING and process.host in busy_hosts
        is_often_late = deviations >= _LEAST_DEVIATIONS and direct[each.process] >= _LEAST_SHARE * available_s
        is_late = each.low_s * each.num_compared >= _LEAST_SHARE * duration_s or is_often_late
        # Without anything that took it longer than the others, it was late because of others.
        has_cause = sum(each.by_layer.values()) > 0
        is_worth_it = share >= _LEAST_SHARE and each.imposed_s >= _LEAST_LOST_S
        if not is_worth_it or not is_late or is_preempted or not has_cause:
            continue
        where = f" in region {each.region}" if each.region else ""
        doing = _DOING.get(each.layer, f"the cause is {each.layer}")
        rank = process.snapshot.owner.rank
        of_it = late == each.process
        direct_s = float(wait_s[of_it].sum())  # 0: all that it caused came through others
        hidden = float(hidden_s[of_it].sum()) / direct_s if direct_s else 0.0
        yield RunFinding(
            kind="straggler",
            seconds=each.imposed_s,
            layer=each.layer,
            process=each.process,
            text=f"{'a process' if rank is None else f'rank {rank}'} on {process.host} kept the others waiting for "
            f"{each.imposed_s:.3g} s ({share:.1%} of their time) at {each.num_late} of {each.num_compared} "
            f"collectives{' and messages' if waits.num_messages else ''}{_describe_hidden(hidden)}; {doing}{where}",
            evidence={"share": share, "hidden_share": hidden, "longer_s": each.longer_s, "low_s": each.low_s,
                      "high_s": each.high_s, "num_late": each.num_late, "num_compared": each.num_compared,
                      "deviations": deviations,
                      **{f"{layer}_s": seconds for layer, seconds in each.by_layer.items()}},
            is_certain=True,
        )  # fmt: skip


def _describe_hidden(share: float) -> str:
    """Why efficiencies may count less of a straggler's waits."""
    if share < _LEAST_HIDDEN_SHARE:
        return ""
    amount = "" if share > 1 - _LEAST_HIDDEN_SHARE else f"{share:.0%} of it "
    return f", {amount}in asynchronous operations, during which they may have computed"


def _usual_wait(waits: NDArray[np.float64]) -> float:
    import numpy as np

    positive = waits[waits > 0]
    return float(np.quantile(positive, _USUAL_SHARE)) if len(positive) else 0.0


def _deviations(waited_for_s: float, totals: NDArray[np.float64], num_ranks: int) -> float:
    """By how many standard deviations the others waited longer for a rank than by chance.

    By chance, the waits in each collective and message are for a rank drawn at random.
    """
    chance = 1 / num_ranks
    spread = math.sqrt(float((totals**2).sum()) * chance * (1 - chance))
    return (waited_for_s - float(totals.sum()) * chance) / spread if spread else 0.0


def _of_links(run: ObservedRun, operations: RunOperations) -> Iterator[RunFinding]:
    """Return one finding for each link, whose ends are devices of two hosts."""
    import numpy as np

    begin, end = operations.rows["begin"], operations.rows["end"]
    if not len(begin):
        return
    first_s, last_s = float(begin.min()), float(np.fmax(begin, end).max())
    duration_s = last_s - first_s
    named: set[tuple[str, ...]] = set()
    # Of the two ends of a link the one that is full is named: acknowledgements that wait there slow the other one, too.
    for link in sorted(link_loads(run, (first_s, last_s)), key=lambda each: not _is_at_its_limit(each)):
        name = f"{link.device} of {link.host}"
        # Short waits now and then, none of them for a whole sample, have other causes.
        was_limit = math.isfinite(link.limited_nbytes_s)
        is_worth_it = was_limit and link.limited_s >= max(_LEAST_LINK_SHARE * duration_s, _LEAST_LINK_S)
        is_full = link.rtt_ratio >= _LEAST_RTT_RATIO or link.num_waits > 0 or link.resent_nbytes > 0
        both_ends = tuple(sorted((name, *link.peers)))
        is_other_end = len(both_ends) == 2 and both_ends in named
        if link.peers and link.sent_nbytes > 0 and is_worth_it and is_full and not is_other_end:
            named.add(both_ends)
            yield _of_link(run, link, duration_s)


def _is_at_its_limit(link: LinkLoad) -> bool:
    return link.limited_nbytes_s >= _LEAST_LIMIT_SHARE * link.queue_nbytes_s


def _of_link(run: ObservedRun, link: LinkLoad, duration_s: float) -> RunFinding:
    shares = {
        "ranks": link.rank_nbytes / link.sent_nbytes,
        "other_ends": link.other_nbytes / link.sent_nbytes,
        "other_programs": link.foreign_nbytes / link.sent_nbytes,
        "unexplained": link.residual_nbytes / link.sent_nbytes,
    }
    culprit = link.other_process if shares["other_ends"] >= _LEAST_OTHER_SHARE else None
    parts = [f"{shares['ranks']:.0%} of its bytes were messages of the ranks"]
    if culprit is not None:
        rank = run.processes[culprit].snapshot.owner.rank
        who = "a process" if rank is None else f"rank {rank}"
        parts.append(f"{shares['other_ends']:.0%} went to others, most of them from {who} to {link.other_end}")
    foreign = shares["other_programs"] + shares["unexplained"]
    if foreign >= _LEAST_OTHER_SHARE:
        parts.append(f"{foreign:.0%} were of programs outside of the run")
    limit = f"; its queue {link.queue} lets {_rate(link.queue_nbytes_s)} through" if link.queue else ""
    return RunFinding(
        kind="bottleneck",
        seconds=link.limited_s,
        layer="network",
        process=culprit,
        text=f"the network device {link.device} of {link.host}, to {', '.join(link.peers)}, was the limit for "
        f"{link.limited_s:.3g} s ({link.limited_s / duration_s:.0%} of the run) at {_rate(link.limited_nbytes_s)}"
        f"{limit}; {', '.join(parts)}",
        evidence={
            "host": link.host,
            "device": link.device,
            "share": link.limited_s / duration_s,
            "nbytes_s": link.limited_nbytes_s,
            "queue_nbytes_s": link.queue_nbytes_s,
            "speed_nbytes_s": link.speed_nbytes_s,
            "rtt_ratio": link.rtt_ratio,
            "resent_nbytes": link.resent_nbytes,
            **{f"share_of_{name}": share for name, share in shares.items()},
        },
        is_certain=True,
    )


def _rate(nbytes_s: float) -> str:
    return "an unknown rate" if math.isnan(nbytes_s) else f"{format_nbytes(round(nbytes_s))}/s"


def _of_contention(found: Contention) -> RunFinding:
    sizes = f"{format_nbytes(found.least_nbytes)} to {format_nbytes(found.most_nbytes + 1)}"
    return RunFinding(
        kind="contention",
        seconds=found.seconds,
        layer="I/O",
        process=None,
        text=f"{found.op} of {sizes} over {found.library} on {found.host} takes {found.ratio:.2f} times as long "
        f"[{found.low:.2f}, {found.high:.2f}] while files are read or written there",
        evidence={key: value for key, value in asdict(found).items() if key != "seconds"},
        is_certain=True,
    )


def _of_load(load: ForeignLoad) -> RunFinding:
    return RunFinding(
        kind=_FOREIGN_LOAD,
        seconds=load.seconds,
        layer=_WAITING,
        process=None,
        text=f"programs outside of the run used {load.share:.1%} of the processors of {load.host}",
        evidence={"share": load.share},
        is_certain=True,
    )


def _has_lost(run: ObservedRun) -> bool:
    return any(sum(process.lost.values()) for process in run.processes)


def _ranks(ranks: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
