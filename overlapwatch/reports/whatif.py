"""What-if in text: two engines drawn as lanes, and what DDP's other bucket caps would do.

In: results of `overlapwatch.whatif`. Out: Rich renderables. It computes nothing but the width of a block.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from overlapwatch.reports.format import counted, duration, percent, scale, size
from overlapwatch.reports.layout import (
    DEFAULT_WIDTH,
    INDENT,
    MINIMUM_WIDTH,
    facts,
    gap,
    heading,
    note,
    sentence,
    table,
)
from overlapwatch.timeline.model import I64
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.ddp import CapForecast, DdpForecast
from overlapwatch.whatif.engines import TwoEngines

_LABEL = len("communication  ")
_NO_TIME_GB_PER_S = 1e6
"""From here on bytes take no time: a fit that found only latency leaves a rest like this."""


def engines(result: TwoEngines, width: int = DEFAULT_WIDTH) -> Iterator[RenderableType]:
    """Yield the two lanes and their sums."""
    cells = max(width, MINIMUM_WIDTH) - INDENT - _LABEL
    yield heading("two engines")
    for name, start, end in (
        ("compute", result.compute_start, result.compute_end),
        ("communication", result.start, result.finish),
    ):
        lane = _lane(start, end, result.total_ns, cells)
        yield Text(" " * INDENT + name.ljust(_LABEL) + lane, no_wrap=True)
    yield gap()
    blocks = zip(
        *(
            column.tolist()
            for column in (result.compute_start, result.compute_end, result.start, result.finish)
        ),
        strict=True,
    )
    ms = scale([*result.compute_end.tolist(), *result.finish.tolist()])
    yield table(
        ("block", "computed, ms", "sent, ms", "waited, ms"),
        [
            (str(number), f"{ms(begin)}–{ms(end)}", f"{ms(start)}–{ms(finish)}", ms(start - end))
            for number, (begin, end, start, finish) in enumerate(blocks, 1)
        ],
    )
    yield gap()
    yield facts(
        {
            "serial": duration(result.serial_ns),
            "overlapped": duration(result.total_ns),
            "hidden": f"{duration(result.hidden_ns)} of {duration(result.communication_ns)} "
            f"({percent(result.hidden_ns, result.communication_ns)})",
            "exposed": duration(result.exposed_ns),
            "tail": duration(result.tail_ns),
        }
    )


def _lane(start: I64, end: I64, whole: int, cells: int) -> str:
    """Draw blocks as `▐1███`; one too short for its number is a bar."""
    lane = [" "] * cells
    for number, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True), 1):
        if finish == begin or not whole:
            continue
        low = min(begin * cells // whole, cells - 1)
        high = max(finish * cells // whole, low + 1)
        block = f"▐{number}".ljust(high - low, "█")
        lane[low:high] = block if len(block) == high - low else "▐" * (high - low)
    return "".join(lane)


def ddp(result: DdpForecast) -> Iterator[RenderableType]:
    """Yield what the model expects of each cap."""
    who = f"rank {result.rank}" if result.rank is not None else "one rank"
    yield heading(f"what other bucket caps would do: {who}")
    yield facts(
        {
            "recorded": f"{counted(result.buckets, 'bucket')}, the largest {size(result.largest_bytes)}; step "
            f"{duration(result.step_ns)}, exposed {duration(result.exposed_ns)}, tail {duration(result.tail_ns)}",
            "from": f"{counted(result.steps, 'sampled step')}; gradients ready on the last of "
            f"{counted(result.ranks, 'rank')}",
            "a collective costs": cost_text(result.cost),
            "launch delay": duration(result.launch_delay_ns),
            "the model": f"says {duration(result.modelled_tail_ns)} of the recorded tail; it is off by "
            f"{duration(result.error_ns)} (median)",
            "ceiling": f"+{100 * result.ceiling:.1f} % throughput if nothing were exposed: a bound, not a forecast",
        }
    )
    yield gap()
    ms = scale([value for cap in result.caps for value in (cap.tail_ns, cap.exposed_ns)])
    step = scale([cap.step_ns for cap in result.caps])
    best = result.best
    yield table(
        ("cap, MiB", "buckets", "largest", "tail, ms", "exposed, ms", "step, ms", "change", ""),
        [
            (
                cap_text(cap),
                f"{cap.buckets:,}",
                size(cap.largest_bytes),
                ms(cap.tail_ns),
                ms(cap.exposed_ns),
                step(cap.step_ns),
                f"{100 * (cap.step_ns / result.step_ns - 1):+.1f} %",
                "◂" if cap in best else "",
            )
            for cap in result.caps
        ],
        words=(0, 7),
    )
    yield gap()
    yield sentence(_verdict(best, result))
    for one in result.unknown:
        yield note(f"not known: {one.what}: {one.because}")


def cap_text(cap: CapForecast) -> str:
    """Write a cap as people give it."""
    return "1, then 25 (default)" if cap.cap_mb is None else f"{cap.cap_mb:g}"


def cost_text(cost: Cost) -> str:
    """Write what a collective costs, and what that was fitted to."""
    parts = [duration(cost.latency_ns)] if cost.latency_ns is not None else []
    if cost.gb_per_s is not None and cost.gb_per_s < _NO_TIME_GB_PER_S:
        parts.append(f"bytes at {cost.gb_per_s:.3g} GB/s")
    text = " + ".join(parts) or "nothing"
    if cost.error is None:
        return f"{text}, as given"
    return (
        f"{text}: fitted to {counted(cost.count, 'collective')} of {counted(cost.sizes, 'size')}, off by "
        f"{100 * cost.error:.1f} % in a step (median)"
    )


def _verdict(best: Sequence[CapForecast], result: DdpForecast) -> str:
    names = " or ".join(cap_text(cap) for cap in best)
    if len(best) == len(result.caps) > 1:
        error = duration(result.error_ns)
        return f"The model cannot tell these caps apart: they differ by less than its error of {error}."
    text = f"Shortest step expected with {names} MiB (◂)."
    if len(best) > 1:
        text += f" These differ by less than the model's error of {duration(result.error_ns)}."
    return f"{text} A forecast: measure it before you keep it."
