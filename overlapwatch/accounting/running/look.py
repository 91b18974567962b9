"""A run while it goes on: each rank's latest steps, what is wrong with which, and what does not finish.

In: a `RunNow`. Out: a `RunView`. Every number of a step is one of its SUMMARY row, which the job's own accounting
made; who is behind in a group is told by the order of collectives, who is late by `live_lateness`. Here they are put
side by side.

| trouble    | when                                                                 |
|------------|----------------------------------------------------------------------|
| killed     | its process is gone and the log was not closed                       |
| stopped    | its process was stopped from outside (SIGSTOP, a debugger)           |
| unreadable | nothing can be read of its log                                       |
| behind     | it has not launched a collective that is old on other ranks          |
| waiting    | a collective of it is old                                            |
| no step    | no step has ended for 5 s and 5 of its steps                         |
| silent     | its log has not grown for 30 s; a watch that works writes every 10 s |

Of several the first in this order is named. It does not know whether a rank of another host still runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.messages import in_flight
from overlapwatch.accounting.ranks.live_lateness import live_lateness
from overlapwatch.accounting.running.latest import Latest, latest_steps
from overlapwatch.accounting.running.unfinished import unfinished
from overlapwatch.accounting.running.views import RankView, RunView, Slowest, Trouble
from overlapwatch.timeline.model import Unknown
from overlapwatch.timeline.running import RankNow, RunNow

SILENT_NS = 30_000_000_000
NO_STEP_NS, NO_STEP_STEPS = 5_000_000_000, 5
ORDERS = ("trouble", "rank", "step", "exposed")
Order = Literal["trouble", "rank", "step", "exposed"]
_TROUBLES: tuple[Trouble, ...] = get_args(Trouble)


def look(run: RunNow, order: Order = "trouble", in_full: int | None = None) -> RunView:
    """Return the run as it is now.

    Args:
        run: what is known.
        order: which rank comes first: with "trouble" those that have any, then the late one, then by rank; with
            "step" and "exposed" the longest newest step, the largest exposed share of it.
        in_full: give the series and statistics of so many of the first ranks only; None: of all.

    """
    latest = {one.rank: latest_steps(one.rows, newest_only=True) for one in run.ranks}
    usual = {rank: one.usual_ns if one else None for rank, one in latest.items()}
    pending, differing = unfinished(run.ranks, usual)
    waiting = {rank for one in pending if one.old for rank in one.ranks}
    behind = {rank for one in pending if one.old for at in one.behind for rank in at.ranks}
    rows = {one.rank: one.rows for one in run.ranks}
    lateness = live_lateness(rows)
    views = [
        _view(one, latest[one.rank], waits=one.rank in waiting, behind=one.rank in behind - waiting)
        for one in run.ranks
    ]
    views.sort(key=_first(order, lateness.worst_rank))
    for place, one in enumerate(views[:in_full]):
        views[place] = replace(one, latest=latest_steps(rows[one.rank]))
    return RunView(
        path=run.path,
        run_id=run.run_id,
        world=run.world,
        ranks=tuple(views),
        absent=run.absent,
        asked=run.asked,
        wall_ns=run.wall_ns,
        slowest=_slowest(usual),
        lateness=lateness,
        unfinished=pending,
        differing=differing,
        unknown=tuple(_unknown(views)),
        notes=run.notes,
        closure=tuple(_checks(run, views)),
    )


def _view(one: RankNow, latest: Latest | None, *, waits: bool, behind: bool) -> RankView:
    flying = one.in_flight
    told = None if flying is None else in_flight(flying, one.names, one.groups, one.now_ns or 0)
    return RankView(
        rank=one.rank,
        path=one.path,
        host=one.host,
        pid=one.pid,
        mode=one.mode,
        process=one.process,
        trouble=_trouble(one, latest, waits=waits, behind=behind),
        steps=one.steps,
        ended_ago_ns=one.ended_ago_ns,
        by_wall_clock=one.by_wall_clock,
        silent_ns=one.silent_ns,
        full=one.full,
        step_now=one.step_now,
        only_begun=one.only_begun,
        latest=latest,
        in_flight=told,
        in_flight_because=one.in_flight_because,
        caught_up=one.caught_up,
        damaged=one.damaged,
        damaged_bytes=one.damaged_bytes,
        notes=one.notes,
        problem=one.problem,
    )


def _trouble(  # noqa: PLR0911 - one a row of the table
    one: RankNow, latest: Latest | None, *, waits: bool, behind: bool
) -> Trouble:
    if one.process in {"killed", "stopped"}:
        return one.process
    if one.problem:
        return "unreadable"
    if one.process == "closed" or not one.caught_up:
        return ""
    if behind or waits:
        return "behind" if behind else "waiting"
    usual_ns = (latest.usual_ns or latest.duration_ns) if latest else 0
    if one.ended_ago_ns is not None and one.ended_ago_ns > max(
        NO_STEP_NS, NO_STEP_STEPS * usual_ns
    ):
        return "no step"
    if one.silent_ns is not None and one.silent_ns > SILENT_NS and not one.full:
        return "silent"
    return ""


def _first(order: Order, late_rank: int | None) -> Callable[[RankView], tuple[float, ...]]:
    """Return the key by which the ranks are sorted."""

    def step(one: RankView) -> float:
        return -one.latest.duration_ns if one.latest else 0

    def exposed(one: RankView) -> float:
        parts = one.latest.parts if one.latest else None
        return -parts.exposed_ns / max(parts.window_ns, 1) if parts else 1

    def trouble(one: RankView) -> float:
        return 2 * _TROUBLES.index(one.trouble) - (one.rank == late_rank)

    def rank(one: RankView) -> float:
        return one.rank

    chosen = {"trouble": trouble, "step": step, "exposed": exposed, "rank": rank}[order]
    return lambda one: (chosen(one), one.rank)


def _slowest(usual: dict[int, int | None]) -> Slowest | None:
    known = {rank: ns for rank, ns in usual.items() if ns is not None}
    if len(known) < 2:
        return None
    rank = max(known, key=lambda one: (known[one], -one))
    ordered = sorted(known.values())
    return Slowest(rank, known[rank], ordered[(len(ordered) - 1) // 2], len(known))


def _unknown(views: Iterable[RankView]) -> Iterator[Unknown]:
    """Say of which ranks it is not known what they wait for, and why; of those that have not ended."""
    reasons: dict[str, list[int]] = {}
    hosts: dict[str, None] = {}
    for one in sorted(views, key=lambda view: view.rank):
        if one.in_flight is not None or one.process == "closed":
            continue
        if one.process == "elsewhere":
            hosts.setdefault(one.host)
        because = _ELSEWHERE if one.process == "elsewhere" else one.in_flight_because
        reasons.setdefault(because, []).append(one.rank)
    for because, ranks in reasons.items():
        where = because
        if because == _ELSEWHERE:
            where = f"{'its ring is' if len(ranks) == 1 else 'their rings are'} {_on(list(hosts))}"
        yield Unknown(f"unfinished collectives of {_some('rank', ranks)}", where)


_ELSEWHERE = "elsewhere"
_MOST_NAMED = 8


def _on(hosts: list[str]) -> str:
    return f"on {_some('host', hosts)}"


def _some(what: str, items: Sequence[object]) -> str:
    """Return `rank 3`, `3 ranks (1, 2, 3)`, `1,024 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...)`."""
    told = ", ".join(map(str, items[:_MOST_NAMED]))
    if len(items) == 1:
        return f"{what} {told}"
    return f"{len(items):,} {what}s ({told}{', ...' if len(items) > _MOST_NAMED else ''})"


def _checks(run: RunNow, views: Iterable[RankView]) -> Iterator[Check]:
    for one in views:
        parts = one.latest.parts if one.latest else None
        if parts is not None:
            yield Check(
                f"rank {one.rank}, step {parts.step}: the parts add up to the step",
                sum(parts.shares_ns),
                parts.window_ns,
            )
    if run.world is not None and run.asked is None and run.absent:
        yield Check(
            "ranks with a log + ranks without = world",
            len(run.ranks) + len(run.absent),
            run.world,
            "ranks",
        )
