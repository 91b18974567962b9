"""What a running job prints: one line per step, and a few lines at the end.

In: one SUMMARY row, or what the watch knows when it closes. Out: plain strings, cheap enough for
the drain thread (no Rich here). Typical magnitudes (steps of 100 to 1,000 ms) line up:

    step 120  412.3 ms  comm 150.2  hidden 92.1 (61.3 %)  exposed 58.1 (14.1 % of step)  tail 12.3 ms  4 buckets
    step 121  409.7 ms  recording off (shadow step)
    step 122  410.9 ms  comm 149.8  hidden 90.2 (60.2 %)  exposed 59.6 (14.5 % of step)  tail 13.0 ms  4 buckets

Times are in ms; what is not known is said in words. It knows nothing beyond the step it prints.
"""

import shlex
from pathlib import Path

import numpy as np

from overlapwatch.accounting.shadow import ShadowCost
from overlapwatch.vocabulary import NOT_KNOWN, SUMMARY, StepFlag

_REMARKS = tuple(
    (int(flag), text)
    for flag, text in (
        (StepFlag.UNBUCKETED, "first iteration: one bucket, not in statistics"),
        (StepFlag.FIRST_BATCH, "first batch: nothing sent before its end, not in statistics"),
        (StepFlag.REBUILT, "buckets rebuilt, not in statistics"),
        (StepFlag.DISTURBED, "kernel window or changed settings, not in statistics"),
        (StepFlag.PARTIAL, "incomplete, not in statistics"),
        (StepFlag.ACCUMULATING, "accumulating"),
        (StepFlag.SLOW, "slow step"),
    )
)
"""What is said of a step with a flag, in this order. Plain integers: enum arithmetic costs more
than the line."""

_REMARKABLE = sum(flag for flag, _ in _REMARKS)
_SHADOW, _PARTIAL = int(StepFlag.SHADOW), int(StepFlag.PARTIAL)


def step_line(summary: np.void, unit: str = "bucket") -> str:
    """Return the line of one step.

    Args:
        summary: one row of a SUMMARY array.
        unit: what the gradients are reduced by: "bucket", or "module" with FSDP2.

    """
    row = dict(zip(_FIELDS, summary.item(), strict=True))
    flags, took_ns, tail_ns = row["flags"], row["end_ns"] - row["start_ns"], row["tail_ns"]
    line = f"step {row['step']:>3}  {_cell(took_ns, 5)} ms"
    if flags & _SHADOW:
        return f"{line}  recording off (shadow step)"
    if not row["collectives"] and not flags & _PARTIAL:
        line += "  no communication seen"
    else:
        tail = "tail not known" if tail_ns == NOT_KNOWN else f"tail {_cell(tail_ns, 4)} ms"
        sent = _counted(row["buckets"], unit) or _counted(row["collectives"], "collective")
        line += f"  {_overlap(row, took_ns)}  {tail}" + (f"  {sent}" if sent else "")
    if flags & _REMARKABLE:
        line += "".join(f"  {text}" for flag, text in _REMARKS if flags & flag)
    return line


_FIELDS = SUMMARY.names or ()


def _overlap(row: dict[str, int], took_ns: int) -> str:
    """Return comm, hidden and exposed, or why they are not known."""
    comm_ns, hidden_ns = row["communication_ns"], row["overlap_ns"]
    exposed_ns = row["communication_only_ns"]
    if NOT_KNOWN in (comm_ns, hidden_ns, exposed_ns):
        return f"hidden not known ({_why(row)})"
    text = (
        f"comm {_cell(comm_ns, 5)}  hidden {_cell(hidden_ns, 4)} ({_share(hidden_ns, comm_ns)} %)"
        f"  exposed {_cell(exposed_ns, 4)} ({_share(exposed_ns, took_ns)} % of step)"
    )
    if row["unfinished"] or row["unobservable"]:
        text += f"  at least: {_why(row)}"
    return text


def _why(row: dict[str, int]) -> str:
    """Return what keeps the numbers of a step from being known, in words."""
    reasons = []
    if row["unfinished"]:
        reasons.append(f"{_counted(row['unfinished'], 'collective')} without a finish")
    if row["unobservable"]:
        reasons.append(f"{_counted(row['unobservable'], 'collective')} whose finish cannot be seen")
    if row["flags"] & _PARTIAL:
        reasons.append("records of this step are missing")
    return " and ".join(reasons) or "the times of its collectives are not known"


def _counted(count: int, thing: str) -> str:
    """Return `4 buckets`, `1 bucket`, nothing for 0."""
    return f"{count} {thing}{'s' * (count != 1)}" if count else ""


def _cell(ns: int, width: int) -> str:
    """Return `ns` in ms, right-aligned: 9.81, 92.1, 412.3, 1412.3."""
    if 0 < ns < 5_000:
        return f"{'<0.01':>{width}}"
    return f"{ns / 1e6:>{width}.2f}" if ns < 9_995_000 else f"{ns / 1e6:>{width}.1f}"


def _share(part: int, whole: int) -> str:
    """Return a share in percent, four wide: ` 5.0`, `61.3`, ` 100`; `  --` without a whole."""
    if whole <= 0:
        return "  --"
    share = 100 * part / whole
    if 0 < share < 0.05:
        return "<0.1"
    return f"{share:4.1f}" if share < 99.95 else f"{share:4.0f}"


def closing_lines(log_path: Path | None, cost: ShadowCost) -> list[str]:
    """Return what is printed when a watch closes: its own cost, where the log is, what to run next.

    Args:
        log_path: the log of this rank, None when none was written.
        cost: what recording cost in this run.

    """
    lines = [f"overlapwatch: recording cost {cost.verdict}"]
    with_ns, without_ns = cost.wait_with_ns, cost.wait_without_ns
    if cost.wait_verdict and with_ns is not None and without_ns is not None:
        lines.append(
            f"overlapwatch: compute waited {with_ns / 1e6:.2f} ms a step with recording, "
            f"{without_ns / 1e6:.2f} ms without: {cost.wait_verdict}"
        )
    if log_path is None:
        lines.append('overlapwatch: no log was written; watch(model, log_dir="runs/a") writes one')
        return lines
    run = shlex.quote(str(log_path.parent))
    return [
        *lines,
        f"overlapwatch: log in {log_path}",
        f"  overlapwatch report {run}         the report of all ranks",
        f"  overlapwatch report {run} --json  the same for scripts",
    ]
