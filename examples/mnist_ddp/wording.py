"""How estimates are said: with their intervals, no share below nothing, and no gain where the interval holds 1."""

from results import Estimate, Timing

from hocket.measure import Ratio

WITHHELD = "withheld"


def with_interval(estimate: Estimate | Ratio, form: str, unit: str = "") -> str:
    """The median, and below it the interval in brackets."""
    median, low, high = (form.format(value) for value in (estimate.median, estimate.low, estimate.high))
    return f"{median}{unit}\n[{low}, {high}]"


def share_text(share: Estimate) -> str:
    """A share of the time; where its interval reaches 0 or below, only its upper end says something."""
    if share.low > 0:
        return with_interval(share, "{:.0%}")
    return f"at most {share.high:.0%}" if share.high > 0 else "none seen"


def speed_text(speed: Ratio) -> str:
    """The speed-up, or a note that the interval shows no difference."""
    if speed.verdict == "not distinguishable":
        return f"no clear difference\n[{speed.low:.2f}, {speed.high:.2f}]"
    return with_interval(speed, "{:.2f}", "x")


def timing_texts(timing: Timing, backend: str) -> tuple[str, str, str]:
    """A backend's step time, share of communication and speed-up; withheld where others kept the machine busy."""
    if timing.too_busy:
        return WITHHELD, WITHHELD, WITHHELD if backend in timing.speed_up else "1"
    speed = speed_text(timing.speed_up[backend]) if backend in timing.speed_up else "1"
    return with_interval(timing.step_ms[backend], "{:.2f}", " ms"), share_text(timing.share[backend]), speed
