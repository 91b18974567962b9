"""What FSDP2 does under a setting, in order: which all-gather is issued where, and what is given back when.

In: a recorded step, a `Setting`. Out: an `Order`: the step's pieces and marks with every all-gather in its place. The
order does not depend on how long anything takes, so that two settings with one order are one forecast.

The rules, as PyTorch has them (`torch.distributed.fsdp`, 2.9 to 2.13):

* at its use a module gathers its parameters unless they are there or on their way;
* then it gathers the modules of its list: with a depth of d the next d, in the order in which modules are used;
* in backward an empty list means one: the module whose forward ended just before its own;
* the outermost module keeps its parameters after forward, and its lists as they are recorded;
* what is given back after forward is gathered again in backward.

    forward_prefetch   use a            use b       use c
    0                  a                b           c
    1                  a, b             c
    2                  a, b, c
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overlapwatch.vocabulary import Phase
from overlapwatch.whatif.fsdp2_items import (
    GATHER,
    Item,
    Mark,
    MarkKind,
    Piece,
    RankRecord,
    StepRecord,
    job_name,
)


class Setting(NamedTuple):
    """One combination; None is as recorded.

    Args:
        forward_prefetch, backward_prefetch: modules ahead; 0 is PyTorch's default: none, and one.
        reshard_after_forward: whether a module's parameters are given back after its forward.
    """

    forward_prefetch: int | None = None
    backward_prefetch: int | None = None
    reshard_after_forward: bool | None = None


AS_RECORDED = Setting()


@dataclass(frozen=True, slots=True)
class Chain:
    """Modules in the order of their uses, without the outermost one: what "the next" means."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]

    @property
    def deepest(self) -> int:
        """The most that one module can gather ahead."""
        return max(len(self.forward), len(self.backward)) - 1


def chain_of(rank: RankRecord) -> Chain:
    """Return the chain of a rank's recorded steps."""
    found: dict[int, dict[str, None]] = {Phase.FORWARD: {}, Phase.BACKWARD: {}}
    for step in rank.steps.values():
        for mark in step.items:
            if isinstance(mark, Mark) and mark.kind is MarkKind.USE and mark.phase in found:
                found[mark.phase].setdefault(mark.module)
    forward, backward = (
        tuple(name for name in found[phase] if name != rank.outermost)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    return Chain(forward, backward)


class Action(NamedTuple):
    """One thing in the order of the host.

    Args:
        item: the piece or mark it stands for; None for an all-gather that is issued.
        module: whose.
        job: the collective that is issued, or at a use waited for; "" where there is none.
        use: number of the use at which an all-gather is issued.
    """

    item: Item | None
    module: str = ""
    job: str = ""
    use: int = 0
    phase: int = Phase.OTHER


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A step under a setting.

    Args:
        actions: in the order of the host.
        shape: the actions without times: equal shapes are equal settings.
    """

    actions: tuple[Action, ...]
    shape: tuple[object, ...] = field(repr=False)

    @property
    def jobs(self) -> list[str]:
        """The collectives, in the order in which they are issued."""
        issued = []
        for one in self.actions:
            mark = one.item
            reduces = isinstance(mark, Mark) and mark.kind is MarkKind.REDUCE
            if mark is None or reduces:
                issued.append(one.job)
        return issued


def order(step: StepRecord, setting: Setting, chain: Chain, outermost: str) -> Order:
    """Return what happens in a step under a setting."""
    return _Hooks(step, setting, chain, outermost).order()


class _Hooks:
    """What FSDP2's hooks know at each moment of a step."""

    def __init__(self, step: StepRecord, setting: Setting, chain: Chain, outermost: str) -> None:
        self._step, self._setting, self._chain = step, setting, chain
        self._outermost = outermost
        self._here = set(step.held_before)
        self._coming: dict[str, str] = {}
        self._count: dict[tuple[int, str], int] = {}
        self._ended: list[str] = []  # forwards, in the order in which they ended
        self._last: dict[str, list[int]] = {}  # places in it
        self._running: list[str] = []  # modules whose forward has begun and not ended
        self._in_forward: set[str] = set()  # their last use was in forward
        self._uses = 0
        self._phase: int = Phase.OTHER
        self._actions: list[Action] = []

    def order(self) -> Order:
        freed = _freed_after_forward(self._step.items)
        for place, item in enumerate(self._step.items):
            if isinstance(item, Piece):
                self._actions.append(Action(item))
            elif item.kind is MarkKind.USE:
                self._use(item, freed)
            elif item.kind is MarkKind.FREE:
                self._free(item, recorded=True, forward=place in freed.places)
            elif item.kind is MarkKind.BY_HAND:
                self._gather(item.module, item.phase, self._uses)
            elif item.kind is MarkKind.REDUCE:
                job = self._job(item.collective, item.module)
                self._actions.append(Action(item, item.module, job, phase=item.phase))
            else:
                self._actions.append(Action(item, item.module, phase=item.phase))
        actions = tuple(self._actions)
        return Order(actions, tuple(_shape(actions)))

    # -- uses --------------------------------------------------------------------------------------------------

    def _use(self, mark: Mark, freed: "_Freed") -> None:
        self._forwards_end(mark, freed)
        if mark.phase == Phase.FORWARD != self._phase:  # a backward is over, if there was one
            self._ended.clear()
            self._last.clear()
        self._phase = mark.phase
        number, self._uses = self._uses, self._uses + 1
        module = mark.module
        if self._as_recorded and not mark.gathered:
            self._here.add(module)
        if module not in self._here and module not in self._coming:
            self._gather(module, mark.phase, number)
        job = self._coming.pop(module, "")
        self._here.add(module)
        self._actions.append(Action(mark, module, job, number, mark.phase))
        if mark.phase == Phase.FORWARD:
            self._running.append(module)
            self._in_forward.add(module)
        else:
            self._in_forward.discard(module)
        for target in self._ahead(mark):
            self._gather(target, mark.phase, number)

    @property
    def _as_recorded(self) -> bool:
        return self._setting == AS_RECORDED

    def _ahead(self, mark: Mark) -> Sequence[str]:
        """Return the modules that this one gathers ahead of their turn."""
        backward = mark.phase != Phase.FORWARD
        depth = self._setting.backward_prefetch if backward else self._setting.forward_prefetch
        chain = self._chain.backward if backward else self._chain.forward
        ahead: Sequence[str] = ()
        if depth is None or mark.module not in chain:
            ahead = mark.issued
        elif depth:
            place = chain.index(mark.module)
            ahead = chain[place + 1 : place + 1 + depth]
        if backward and not ahead and not self._as_recorded:
            return self._implicit(mark.module)
        if backward and self._last.get(mark.module):
            self._last[mark.module].pop()
        return ahead

    def _implicit(self, module: str) -> Sequence[str]:
        """Return what an empty list means in backward: the module whose forward ended before."""
        places = self._last.get(module)
        place = places.pop() if places else 0
        return self._ended[place - 1 : place] if place else ()

    def _gather(self, module: str, phase: int, use: int) -> None:
        if module in self._here or module in self._coming:
            return
        job = self._job(GATHER, module)
        self._coming[module] = job
        self._actions.append(Action(None, module, job, use, phase))

    def _job(self, kind: int, module: str) -> str:
        place = self._count.get((kind, module), 0)
        self._count[kind, module] = place + 1
        return job_name(kind, module, place)

    # -- giving back -------------------------------------------------------------------------------------------

    def _free(self, mark: Mark, *, recorded: bool, forward: bool) -> None:
        module = mark.module
        resharding = self._setting.reshard_after_forward
        if forward:
            as_recorded = resharding is None or module == self._outermost
            gives = recorded if as_recorded else bool(resharding)
            if not gives:
                return
        self._here.discard(module)
        self._actions.append(Action(mark, module))

    def _forwards_end(self, mark: Mark, freed: "_Freed") -> None:
        """The forwards of modules that this use does not belong to are over."""
        backward = mark.phase != Phase.FORWARD
        while self._running:
            last = self._running[-1]
            inside = last == self._outermost or mark.module.startswith(f"{last}.")
            if inside and not backward:
                return
            self._running.pop()
            self._last.setdefault(last, []).append(len(self._ended))
            self._ended.append(last)
            if last not in freed.modules and last in self._here and last in self._in_forward:
                assumed = Mark(MarkKind.FREE, last, Phase.FORWARD)
                self._free(assumed, recorded=False, forward=True)


@dataclass(frozen=True, slots=True)
class _Freed:
    """FREE marks behind a module's forward: their places among the items, and the modules."""

    places: frozenset[int]
    modules: frozenset[str]


def _freed_after_forward(items: Sequence[Item]) -> _Freed:
    last: dict[str, int] = {}
    places, modules = set(), set()
    for place, item in enumerate(items):
        if isinstance(item, Piece):
            continue
        if item.kind is MarkKind.USE:
            last[item.module] = item.phase
        elif item.kind is MarkKind.FREE and last.get(item.module) == Phase.FORWARD:
            places.add(place)
            modules.add(item.module)
    return _Freed(frozenset(places), frozenset(modules))


def _shape(actions: Sequence[Action]) -> Iterator[object]:
    for one in actions:
        if isinstance(one.item, Piece):
            continue
        kind = one.item.kind if one.item is not None else 0
        yield kind, one.module, one.job
