"""How a text report ends: our own cost, what was left out, what is not known, whether it adds up.

In: one Analysis. Out: renderables for `text`. It does not compute: each number is one that the
accounting gives.
"""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.closure import Check
from overlapwatch.reports.format import counted, duration, ms, percent, size
from overlapwatch.reports.layout import facts, heading, note, sentence


def own_cost(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what recording cost in this run."""
    told = analysis.shadow
    if not told.shadows:
        return
    yield heading("What watching cost")
    yield sentence(f"recording a step: {told.verdict}")
    if told.difference_ns is not None and told.shadow_step_ns is not None:
        yield sentence(
            f"median difference {told.difference_ns / 1e6:+.3f} ms, "
            f"{percent(told.difference_ns, told.shadow_step_ns)} of a step of "
            f"{ms(told.shadow_step_ns)} ms; {told.pairs} of "
            f"{counted(told.shadows, 'shadow step')} beside recorded ones"
        )
    if told.wait_with_ns is not None and told.wait_without_ns is not None:
        yield sentence(
            f"compute waited {ms(told.wait_with_ns)} ms a step with recording and "
            f"{ms(told.wait_without_ns)} ms without, {counted(told.waits, 'pair')}"
            f"{': ' + told.wait_verdict if told.wait_verdict else ''}"
        )
    yield note("hooks stay in place in a shadow step: what they cost by being there is not in this")


def calibration(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield how far the marks are off, by the steps that also ran under a profiler."""
    marks_ns = analysis.counters.get("calibrated_marks_compute_ns", 0)
    kernels_ns = analysis.counters.get("calibrated_kernels_compute_ns", 0)
    if not (marks_ns and kernels_ns):
        return
    yield heading("Marks and kernels")
    yield sentence(
        f"in the steps that ran under a profiler, compute is {ms(marks_ns)} ms by marks and "
        f"{ms(kernels_ns)} ms by what the profiler saw: {(marks_ns - kernels_ns) / 1e6:+,.2f} ms, "
        f"{percent(abs(marks_ns - kernels_ns), kernels_ns)}"
    )
    yield note("a profiler widens the gaps between launches: elsewhere the marks are rather closer")


def left_out(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield notes, what the source could not use, and what the recorder counted about itself."""
    if not (analysis.notes or analysis.skipped or analysis.counters):
        return
    yield heading("Losses and counts")
    for text in analysis.notes:
        yield sentence(text)
    for one in analysis.skipped:
        yield sentence(f"left out: {one.count:,} {one.what}: {one.because}")
    if analysis.counters:
        yield facts([_counter(name, value) for name, value in analysis.counters.items()])


def _counter(name: str, value: int) -> tuple[str, str]:
    for suffix, written in (("_ns", duration), ("_bytes", size)):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " "), written(value)
    return name.replace("_", " "), f"{value:,}"


def not_known(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what this input cannot tell, and why."""
    if not analysis.unknown:
        return
    yield heading("Not known")
    for one in analysis.unknown:
        yield sentence(f"{one.what}: {one.because}")


def closure(checks: Iterable[Check]) -> Iterator[RenderableType]:
    """Yield one line when everything adds up, else each check that does not."""
    checks = tuple(checks)
    failed = [check for check in checks if not check.ok]
    if not failed:
        yield sentence(f"books close: {counted(len(checks), 'check')}", "dim")
        return
    yield heading("DOES NOT ADD UP")
    yield sentence(
        f"{len(failed)} of {counted(len(checks), 'check')} failed: do not trust the numbers they "
        "name, and please report it with this input",
        "bold red",
    )
    for check in failed:
        yield sentence(f"{check.name}: {check.left:,} ≠ {check.right:,} {check.unit}", "red")
