"""Format estimates: with their intervals, without negative shares, and without a gain if the interval contains 1."""

from results import Estimate, Timing

from hocket.measure import Ratio

WITHHELD = "withheld"


def with_interval(estimate: Estimate | Ratio, form: str, unit: str = "") -> str:
    """Format the median, and below it the interval in brackets."""
    median, low, high = (form.format(value) for value in (estimate.median, estimate.low, estimate.high))
    return f"{median}{unit}\n[{low}, {high}]"


def share_text(share: Estimate) -> str:
    """Format a share of the time; if its interval includes 0, only as an upper bound."""
    if share.low > 0:
        return with_interval(share, "{:.0%}")
    return f"at most {share.high:.0%}" if share.high > 0 else "not measurable"


def speed_text(speed: Ratio) -> str:
    """Format the speed-up, or a note that the interval shows no difference."""
    if speed.verdict == "not distinguishable":
        return f"no clear difference\n[{speed.low:.2f}, {speed.high:.2f}]"
    return with_interval(speed, "{:.2f}", "x")


def timing_texts(timing: Timing, backend: str) -> tuple[str, str, str]:
    """Format a backend's step time, communication share and speed-up; withheld if the machine was too busy."""
    if timing.too_busy:
        return WITHHELD, WITHHELD, WITHHELD if backend in timing.speed_up else "1"
    speed = speed_text(timing.speed_up[backend]) if backend in timing.speed_up else "1"
    return with_interval(timing.step_ms[backend], "{:.2f}", " ms"), share_text(timing.share[backend]), speed
