"""How the ranks of a sweep agree, through the job's own store: no collective, and nobody waits.

In: what each rank wants. Out: the step at which all begin, which settings are dropped, when to stop, which setting to
keep. Rank 0 decides, and between two steps leaves its decision in the store, some steps before it holds; the others
look there between steps. Ranks of a synchronous job are never more than a step or two apart, so all of them see it in
time.
"""

import json
from dataclasses import dataclass
from typing import Any

AHEAD = 8


class NoSweepError(Exception):
    """The ranks do not agree; the message says why."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds from a block on: settings not to be tried any more, and whether to end the sweep."""

    dropped: tuple[int, ...] = ()
    stop: bool = False


class Agreement:
    """One rank's view of the store.

    Args:
        store: with `set`, `get` and `check`; keys are this sweep's own.
        rank, world: of the job.
        digest: what must be the same on all ranks.
    """

    def __init__(self, store: Any, rank: int, world: int, digest: str) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._digest = digest

    def announce(self) -> None:
        """Say that this rank is ready, and for what."""
        self._store.set(f"ready/{self._rank}", self._digest)

    def gathered(self, *, patience_over: bool) -> str | None:
        """On rank 0, any thread: return "" when all ranks are ready and agree, why not when they cannot, else None."""
        keys = [f"ready/{rank}" for rank in range(self._world)]
        if not self._store.check(keys):
            if not patience_over:
                return None
            there = {rank for rank, key in enumerate(keys) if self._store.check([key])}
            absent = sorted(set(range(self._world)) - there)
            first = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            return f"rank {first} of {self._world} did not call sweep()"
        told = [self._store.get(key).decode() for key in keys]
        odd = [rank for rank, digest in enumerate(told) if digest != self._digest]
        return f"rank {odd[0]} asks for other settings than rank 0" if odd else ""

    def begin(self, step: int, because_not: str) -> None:
        """On rank 0, between two steps: say that the sweep begins some steps after this one, or ends there, and why."""
        self._store.set("begin", json.dumps([step + AHEAD, because_not]))

    def begins_at(self) -> tuple[int, str] | None:
        """Return the step with which the sweep begins, and "" or why it ends there; None until that is known."""
        if not self._store.check(["begin"]):
            return None
        step, because_not = json.loads(self._store.get("begin"))
        return int(step), str(because_not)

    def decide(self, block: int, decision: Decision) -> None:
        """On rank 0, when the block before it begins: say what holds from this block on."""
        self._store.set(f"block/{block}", json.dumps([list(decision.dropped), decision.stop]))

    def decision(self, block: int) -> Decision:
        """Return what holds from this block on. It has been there for a whole block.

        Raises:
            NoSweepError: it is not there: the ranks have come apart.
        """
        if not self._store.check([f"block/{block}"]):
            raise NoSweepError(f"rank 0 has not come to block {block}")
        dropped, stop = json.loads(self._store.get(f"block/{block}"))
        return Decision(tuple(dropped), bool(stop))

    def keep(self, arm: int, step: int) -> None:
        """On rank 0, between two steps: say which setting to keep, some steps after this one."""
        self._store.set("keep", json.dumps([arm, step + AHEAD]))

    def kept(self) -> tuple[int, int] | None:
        """Return (setting, step) once that is decided."""
        if not self._store.check(["keep"]):
            return None
        arm, step = json.loads(self._store.get("keep"))
        return int(arm), int(step)
