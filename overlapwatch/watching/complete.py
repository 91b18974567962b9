"""Fills in what is known of a step's records only when the step is over.

In: an ended step, what DDP's statistics said after its backwards, and which collectives FSDP2 has waited for. Out: the
same records with ready times and gating parameters (from DDP), finishes that cannot have been later than the wait for
them, waits that end when what they waited for did, and estimated starts; and the gradients' ready times. On a device
the events have told the times already: the gating parameter is added there, and when FSDP2's gradients were complete.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from overlapwatch.hooks.recorder import BackwardReport, FinishBound
from overlapwatch.vocabulary import GRADIENT_READY, CollectiveKind, RecordFlag, RecordKind
from overlapwatch.watching.assemble import EndedStep
from overlapwatch.watching.gradients import place
from overlapwatch.watching.starts import estimate_starts

_FINISH_ESTIMATED = np.uint8(RecordFlag.FINISH_ESTIMATED)
_STEP = int(RecordKind.STEP)
_SCATTER = int(CollectiveKind.REDUCE_SCATTER)


class Completer:
    """Completes steps in order.

    Args:
        workers: group id -> collectives that its backend runs at a time; may grow.
        on_host: whether the times are the host's.
    """

    def __init__(self, workers: Mapping[int, int], *, on_host: bool) -> None:
        self._workers = workers
        self._on_host = on_host
        self._previous_end_ns = 0

    def complete(
        self,
        step: EndedStep,
        reports: Iterable[BackwardReport],
        bounds: Iterable[FinishBound] = (),
    ) -> NDArray[np.void]:
        """Complete the records of a step in place; return its GRADIENT_READY rows."""
        at = {slot: place_ for place_, slot in enumerate(step.slots.tolist())}
        parts = [np.empty(0, GRADIENT_READY)]
        for report in reports:
            parts.append(self._put_ready_times(step.records, at, report))
            if self._on_host:
                _bound_finishes(step.records, at, report)
        for bound in bounds:
            _bound_wait(step.records, at, bound)
        if not self._on_host:
            self._join_to_previous(step.records)
            _put_gradients_complete(step.records)
        estimate_starts(step.records, self._workers)
        return parts[-1] if len(parts) == 2 else np.concatenate(parts)

    def _put_ready_times(
        self, records: NDArray[np.void], at: Mapping[int, int], report: BackwardReport
    ) -> NDArray[np.void]:
        gradients, buckets = place(report)
        ready, cause = records["ready"], records["cause"]
        for bucket in buckets:
            place_ = at.get(bucket.slot)
            if place_ is not None:
                cause[place_] = bucket.gating_parameter
                if self._on_host:
                    ready[place_] = bucket.ready_ns
        return gradients

    def _join_to_previous(self, records: NDArray[np.void]) -> None:
        """On a device a step's end is an event, and the next step begins there; the host was ahead of both."""
        steps = np.flatnonzero(records["kind"] == _STEP)
        if not len(steps):
            return
        if self._previous_end_ns:
            records["start"][steps[-1]] = self._previous_end_ns
        self._previous_end_ns = int(records["finish"][steps[-1]])


def _bound_wait(records: NDArray[np.void], at: Mapping[int, int], bound: FinishBound) -> None:
    """The wait was over by then, so the collective was; the wait ends when the collective did, if that was later."""
    wait, collective = at.get(bound.wait), at.get(bound.collective)
    if wait is None or collective is None:  # launched in the step before
        return
    finish = records["finish"]
    if not 0 < finish[collective] <= bound.until_ns:
        finish[collective] = bound.until_ns
        records["flags"][collective] |= _FINISH_ESTIMATED
    finish[wait] = max(records["start"][wait], finish[collective])


def _put_gradients_complete(records: NDArray[np.void]) -> None:
    """A module's wait for the reduce-scatter ahead of its own begins where its gradients are complete: `ready`."""
    kind, collective = records["kind"], records["collective"]
    scatters = np.flatnonzero(
        (kind == RecordKind.COLLECTIVE) & (collective == _SCATTER) & (records["ready"] == 0)
    )
    waits = np.flatnonzero((kind == RecordKind.WAIT) & (collective == _SCATTER))
    for one in scatters.tolist():
        own = waits[records["owner"][waits] == records["owner"][one]]
        before = own[records["start"][own] <= records["start"][one]]
        if records["owner"][one] and len(before):
            records["ready"][one] = records["start"][before].max()


def _bound_finishes(
    records: NDArray[np.void], at: Mapping[int, int], report: BackwardReport
) -> None:
    """DDP had its buckets back when its wait ended: a finish stamped later was stamped late (the GIL was taken)."""
    finish, until = records["finish"], report.waited_until_ns
    for slot, _, _ in report.buckets:
        place_ = at.get(slot)
        if place_ is not None and finish[place_] > until:
            finish[place_] = until
            records["flags"][place_] |= _FINISH_ESTIMATED
