"""A process group of one, and a recorder on a clock that the test drives."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import Guard, Recorder
from overlapwatch.hooks.times import HostTimes
from overlapwatch.ring import Ring
from overlapwatch.vocabulary import RecordKind
from tests.support.training import alone


@dataclass
class Clock:
    """Host time in ns: it goes on by one at each look, so that no two moments are the same. Or the real one."""

    ns: int = 1_000
    real: bool = False

    def __call__(self) -> int:
        self.ns = time.perf_counter_ns() if self.real else self.ns + 1
        return self.ns


@dataclass
class Bench:
    """A recorder and everything it needs."""

    recorder: Recorder
    clock: Clock
    ring: Ring
    names: Names

    def records(self, kind: RecordKind | None = None) -> NDArray[np.void]:
        """Return what was recorded so far, of one kind or all."""
        found = self.ring.read(0).records
        return found if kind is None else found[found["kind"] == kind]

    def flags(self) -> list[tuple[int, int]]:
        """Return the step flags so far."""
        return list(self.recorder.step_flags)


@pytest.fixture
def bench() -> Iterator[Bench]:
    ring, _ = Ring.create("test", 1 << 12, (), {})
    clock, names = Clock(), Names()
    yield Bench(Recorder(ring, names, HostTimes(clock, ring), Guard()), clock, ring, names)
    ring.close(remove=True)


@pytest.fixture
def group() -> Iterator[None]:
    with alone():
        yield
