"""A backend that is slow, dead, or back again: nobody waits for it, and what was not delivered is said."""

import threading

import pytest

from overlapwatch.errors import OverlapwatchError
from overlapwatch.metrics import outbox
from overlapwatch.metrics.outbox import Outbox


class Backend:
    """Takes items as the test lets it."""

    def __init__(self, *, fails: int = 0) -> None:
        self.got: list[int] = []
        self.warnings: list[str] = []
        self.finished = threading.Event()
        self.arrived = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._fails = fails

    def deliver(self, items: list[int]) -> None:
        self.arrived.set()
        self.may_go_on.wait()
        if self._fails:
            self._fails -= 1
            raise ConnectionError("nobody there")
        self.got += items

    def box(self, **options) -> Outbox[int]:
        made = Outbox(
            "metrics to it", self.deliver, self.finished.set, self.warnings.append, **options
        )
        made.start()
        return made


def test_all_arrives_in_order():
    backend = Backend()
    box = backend.box(every_s=0)
    for item in range(500):
        box.put(item)
    box.close()
    assert backend.got == list(range(500))
    assert backend.finished.is_set()
    assert backend.warnings == []


def test_a_slow_backend_holds_nobody_up_and_the_oldest_are_dropped():
    backend = Backend()
    backend.may_go_on.clear()
    box = backend.box(every_s=0, most=10)
    box.put(0)
    assert backend.arrived.wait(10)  # it is at work on the first one, and does not come back
    for item in range(1, 101):
        box.put(item)
    backend.may_go_on.set()
    box.close()
    assert backend.got == [0, *range(91, 101)]
    assert backend.warnings == ["metrics to it: 90 of 101 steps were not delivered"]


def test_a_backend_that_never_answers_does_not_hold_up_the_end():
    backend = Backend()
    backend.may_go_on.clear()
    box = backend.box(every_s=0)
    box.put(0)
    assert backend.arrived.wait(10)
    box.close(timeout_s=0.05)
    assert backend.warnings == ["metrics to it: 1 of 1 steps were not delivered"]
    assert not backend.finished.is_set()
    backend.may_go_on.set()


def test_a_backend_that_comes_back_gets_what_it_missed(monkeypatch):
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
    backend = Backend(fails=2)
    box = backend.box(every_s=0)
    box.put(1)
    box.put(2)
    while not backend.got:
        threading.Event().wait(0.005)
    box.put(3)
    box.close()
    assert backend.got == [1, 2, 3]
    assert backend.warnings == [
        "metrics to it: ConnectionError: nobody there; it is tried again, training goes on"
    ]


def test_a_dead_backend_is_warned_of_once_and_counted_at_the_end(monkeypatch):
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
    backend = Backend(fails=1_000_000)
    box = backend.box(every_s=0, most=4)
    for item in range(20):
        box.put(item)
        backend.arrived.wait(10)
    box.close()
    assert len(backend.warnings) == 2
    assert backend.warnings[1] == "metrics to it: 20 of 20 steps were not delivered"


def test_what_we_say_ourselves_is_said_as_it_is():
    warnings: list[str] = []

    def deliver(_: list[int]) -> None:
        raise OverlapwatchError("there is no run")

    box: Outbox[int] = Outbox("metrics to it", deliver, lambda: None, warnings.append)
    box.start()
    box.put(1)
    box.close()
    assert warnings[0] == "metrics to it: there is no run"


@pytest.mark.parametrize("started", [True, False])
def test_closing_without_anything(started):
    warnings: list[str] = []
    box: Outbox[int] = Outbox("x", lambda _: None, lambda: None, warnings.append)
    if started:
        box.start()
    box.close()
    assert warnings == []
