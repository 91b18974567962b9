"""How far the marker-based compute lane is off, measured on the steps that ran under a profiler.

In: the Timeline of a step as the marks have it, and the spans that a profiler saw in the same step.
Out: a `Calibration`: one window accounted twice, by the same functions, with either compute lane.
The communication lane is the same in both.

    marks      0-10            compute 10, of communication 4-12 hidden  6      6 / 8
    kernels    0-3, 5-9        compute  7, of communication 4-12 hidden  4      4 / 8
    in both    7    marks only 3 (gaps between launches)    kernels only 0 (work outside the marked spans)

The window is what both have seen of the step. Under a profiler a step takes longer, its gaps above
all, so the difference is rather an upper bound of what the marks overstate in other steps. On the
CPU the "kernels" are operators, from call to return; `kernels_rule` says what they are.
"""

from dataclasses import dataclass, replace
from typing import Any

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.lanes import lanes_of
from overlapwatch.accounting.partition import Partition, partition
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.intervals import intersect, subtract, total
from overlapwatch.timeline.model import Lane, Timeline


@dataclass(frozen=True, slots=True)
class Calibration:
    """One step, accounted by marks and by what a profiler saw.

    Args:
        step: its number.
        window: what both have seen of it.
        marks, kernels: the partition of that window with either compute lane.
        both_ns: compute by both.
        marks_only_ns: compute by the marks, in which the profiler saw none.
        kernels_only_ns: compute that the profiler saw outside the marked spans.
        marks_rule, kernels_rule: what the lanes are made of, in words.
    """

    step: int
    window: Window
    marks: Partition
    kernels: Partition
    both_ns: int
    marks_only_ns: int
    kernels_only_ns: int
    marks_rule: str
    kernels_rule: str

    @property
    def difference_ns(self) -> int:
        """Compute by the marks - compute by the profiler."""
        return self.marks.compute_ns - self.kernels.compute_ns

    @property
    def sentence(self) -> str:
        """The difference in words, with both sides."""
        marks_ms, kernels_ms = self.marks.compute_ns / 1e6, self.kernels.compute_ns / 1e6
        text = (
            f"step {self.step} ran under a profiler: compute {marks_ms:.2f} ms by marks, "
            f"{kernels_ms:.2f} ms by {self.kernels_rule} ({self.difference_ns / 1e6:+.2f} ms)"
        )
        ratios = self.marks.overlap_ratio, self.kernels.overlap_ratio
        if ratios[0] is None or ratios[1] is None or not self.marks.communication_known:
            return f"{text}; overlap not known"
        hidden = f"{self.marks.overlap_ns / 1e6:.2f} and {self.kernels.overlap_ns / 1e6:.2f}"
        return (
            f"{text}; of {self.marks.communication_ns / 1e6:.2f} ms of communication {hidden} ms "
            f"hidden ({100 * ratios[0]:.1f} and {100 * ratios[1]:.1f} %)"
        )

    def checks(self) -> tuple[Check, ...]:
        """Return how the two accounts hang together, and each one's own checks."""
        return (
            Check(
                "in both + marks only = compute by marks",
                self.both_ns + self.marks_only_ns,
                self.marks.compute_ns,
            ),
            Check(
                "in both + kernels only = compute by kernels",
                self.both_ns + self.kernels_only_ns,
                self.kernels.compute_ns,
            ),
            Check(
                "communication beside marks = communication beside kernels",
                self.marks.communication_ns,
                self.kernels.communication_ns,
            ),
            *self.marks.checks(),
            *self.kernels.checks(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as plain values, for JSON."""
        return {
            "step": self.step,
            "window": self.window.to_dict(),
            "marks_rule": self.marks_rule,
            "kernels_rule": self.kernels_rule,
            "marks": self.marks.to_dict(),
            "kernels": self.kernels.to_dict(),
            "difference_ns": self.difference_ns,
            "both_ns": self.both_ns,
            "marks_only_ns": self.marks_only_ns,
            "kernels_only_ns": self.kernels_only_ns,
        }


def calibrate(
    tl: Timeline, kernels: Lane, covered: tuple[int, int], kernels_rule: str
) -> Calibration:
    """Account one step twice.

    Args:
        tl: the timeline of one step, as the marks have it.
        kernels: the compute lane that a profiler saw, on the clock of `tl`.
        covered: from where to where the profiler ran, ns.
        kernels_rule: what `kernels` is made of, in words.

    Raises:
        ValueError: the timeline has not exactly one step.
    """
    if len(tl.steps) != 1:
        raise ValueError(f"one step is calibrated at a time, not {len(tl.steps)}")
    step = tl.steps[0]
    start = max(int(step["start"]), covered[0])
    end = max(min(int(step["end"]), covered[1]), start)
    number = int(step["step"])
    window = Window(start, end, f"step {number}, as far as the profiler covered it")
    other = replace(tl, compute=kernels, compute_rule=kernels_rule)
    by_marks, by_kernels = lanes_of(tl, window), lanes_of(other, window)
    return Calibration(
        step=number,
        window=window,
        marks=partition(tl, window, by_marks),
        kernels=partition(other, window, by_kernels),
        both_ns=total(intersect(by_marks.compute, by_kernels.compute)),
        marks_only_ns=total(subtract(by_marks.compute, by_kernels.compute)),
        kernels_only_ns=total(subtract(by_kernels.compute, by_marks.compute)),
        marks_rule=tl.compute_rule,
        kernels_rule=kernels_rule,
    )
