"""The lanes of a simulation: what a host, or the streams of a device, do with the order that FSDP2's hooks give.

In: an `Order` of one step of one rank, and what issuing and copying cost each module. Out: `Lane`s.

| lane                 | what it does                                                                            |
|----------------------|-----------------------------------------------------------------------------------------|
| of a host, only one  | all of it, one thing after another; stands still for reductions, for gathers at their use |
| device: compute      | compute, copies out of buffers; waits for the reduction before, at the end for all      |
| device: copies in    | one after another, as far ahead as the host is and buffers allow                        |
| device: all-gathers, reduce-scatters, all-reduces | each kind one after another                                |

The host of a device is ahead: an all-gather may begin where the host got to its use, behind the one before it, and not
before a buffer is free: in forward, the copy out of the one before the last has ended; in backward, of the last.
"""

from collections.abc import Mapping

from overlapwatch.vocabulary import CollectiveKind, Phase
from overlapwatch.whatif.fsdp2_engines import Does, Lane, Op
from overlapwatch.whatif.fsdp2_items import Item, Mark, MarkKind, Piece, RankRecord
from overlapwatch.whatif.fsdp2_program import Order

STOPPED = "stopped by "
"""Begins the name of work that is a collective of no module, for which the caller stands still; its kind follows."""

Costs = Mapping[str, tuple[int, int]]
"""(to issue an all-gather, to copy out of its buffer), ns, of each module."""


def host_lanes(rank: int, begin: int, done: Order, record: RankRecord, costs: Costs) -> list[Lane]:
    """Return the one lane of a host: the caller does everything, and stands still where it must."""
    ops = [Op(Does.HOLD, name) for name in sorted(_there_at_once(done))]
    for one in done.actions:
        item = one.item
        issue, copy = costs.get(one.module, (0, 0))
        if item is None:
            ops += [
                Op(Does.HOLD, one.module),
                Op(Does.WORK, ns=issue),
                Op(Does.SEND, one.job, phase=one.phase),
            ]
            if one.module in record.blocking:
                ops.append(Op(Does.AWAIT, one.job))
        elif isinstance(item, Piece):
            ops.append(Op(Does.WORK, "", item.ns, item.computing, item.phase))
        elif item.kind is MarkKind.USE and one.job:
            ops += [Op(Does.AWAIT, one.job), Op(Does.WORK, ns=copy)]
        elif item.kind is MarkKind.REDUCE:
            ops += [Op(Does.SEND, one.job, phase=one.phase), Op(Does.AWAIT, one.job)]
        elif item.kind is MarkKind.FREE:
            ops.append(Op(Does.FREE, one.module))
        elif item.kind is MarkKind.STOP:
            ops.append(Op(Does.WORK, f"{STOPPED}{item.collective}", item.ns, phase=item.phase))
    return [Lane(rank, begin, ops)]


def device_lanes(rank: int, begin: int, done: Order, costs: Costs) -> list[Lane]:
    """Return the streams of a device: compute, all-gathers, reduce-scatters, and all-reduces behind them."""
    compute: list[Op] = [Op(Does.HOLD, name) for name in sorted(_there_at_once(done))]
    copy_in: list[Op] = []
    gather: list[Op] = []
    scatter: list[Op] = []
    reduce: list[Op] = []
    copied: list[str] = []
    outstanding: list[str] = []
    forward = False  # the all-gather issued last was of a forward
    scattered = ""  # the reduce-scatter issued last
    host = 0
    uses = _host_times(done)
    for one in done.actions:
        item = one.item
        issue, copy = costs.get(one.module, (0, 0))
        if item is None:
            host = max(host, uses.get(one.use, host))
            copy_in.append(Op(Does.UNTIL, ns=host))
            if (
                one.phase == Phase.FORWARD and not forward
            ):  # a forward waits for what came before it
                compute.append(Op(Does.SIGNAL, f"forward {one.job}"))
                copy_in.append(Op(Does.AWAIT, f"forward {one.job}"))
            forward = one.phase == Phase.FORWARD
            back = 2 if one.phase == Phase.FORWARD else 1
            if len(copied) >= back:
                copy_in.append(Op(Does.AWAIT, copied[-back]))
            filled = f"filled {one.job}"
            copy_in += [
                Op(Does.HOLD, one.module),
                Op(Does.WORK, ns=issue),
                Op(Does.SIGNAL, filled),
            ]
            gather += [
                Op(Does.AWAIT, filled),
                Op(Does.SEND, one.job, phase=one.phase),
                Op(Does.AWAIT, one.job),
            ]
        elif isinstance(item, Piece):
            compute.append(Op(Does.WORK, "", item.ns, item.computing, item.phase))
        elif item.kind is MarkKind.USE and one.job:
            copied.append(f"copied {one.job}")
            compute += [
                Op(Does.AWAIT, one.job),
                Op(Does.WORK, ns=copy),
                Op(Does.SIGNAL, copied[-1]),
            ]
        elif item.kind is MarkKind.WAIT:
            compute += [Op(Does.AWAIT, scattered)] if scattered else []
        elif item.kind is MarkKind.REDUCE:
            ready = f"ready {one.job}"
            behind = item.collective == CollectiveKind.ALL_REDUCE and scattered != ""
            compute.append(Op(Does.SIGNAL, ready))
            lane = reduce if behind else scatter
            lane += [
                Op(Does.AWAIT, scattered if behind else ready),
                Op(Does.SEND, one.job, phase=one.phase),
                Op(Does.AWAIT, one.job),
            ]
            scattered = scattered if behind else one.job
            outstanding.append(one.job)
        elif item.kind is MarkKind.END:
            compute += [Op(Does.AWAIT, job) for job in outstanding]
            outstanding.clear()
        elif item.kind is MarkKind.FREE:
            compute.append(Op(Does.FREE, one.module))
        elif item.kind is MarkKind.STOP:
            compute.append(Op(Does.WORK, f"{STOPPED}{item.collective}", item.ns, phase=item.phase))
    return [Lane(rank, begin, ops) for ops in (compute, copy_in, gather, scatter, reduce)]


def _host_times(done: Order) -> dict[int, int]:
    return {
        one.use: max(one.item.ns, 0)
        for one in done.actions
        if isinstance(one.item, Mark) and _is_use(one.item)
    }


def _there_at_once(done: Order) -> set[str]:
    """Return the modules that were used before they were gathered: they were there when the step began."""
    gathered: set[str] = set()
    before: set[str] = set()
    for one in done.actions:
        if one.item is None:
            gathered.add(one.module)
        elif _is_use(one.item) and one.module not in gathered:
            before.add(one.module)
    return before


def _is_use(item: Item | None) -> bool:
    return isinstance(item, Mark) and item.kind is MarkKind.USE
