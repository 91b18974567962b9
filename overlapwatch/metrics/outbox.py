"""A bounded queue with a thread that empties it, so that a slow or dead backend holds nobody up.

In: items, from the drain thread, which never waits. Out: calls of `deliver` on a thread of its own, with all that has
gathered. A delivery that fails is warned of once and tried again later; when the queue is full, the oldest item is
dropped and counted. Closing waits a little and no longer, and says what was not delivered. It does not know what an
item is.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from overlapwatch.errors import OverlapwatchError

T = TypeVar("T")

MOST = 1024
EVERY_S = 1.0
RETRY_S = 5.0
LONGEST_RETRY_S = 60.0
CLOSE_S = 3.0


class Outbox(Generic[T]):
    """Delivers items in order, some later.

    Args:
        what: what is delivered where, for a warning: "metrics to MLflow".
        deliver: takes a list of items, oldest first; raises when that failed as a whole.
        finish: called on the thread at the end.
        warn: where sentences go.
        every_s: pause between deliveries.
        most: items that wait at most.

    """

    def __init__(
        self,
        what: str,
        deliver: Callable[[list[T]], None],
        finish: Callable[[], None],
        warn: Callable[[str], object],
        *,
        every_s: float = EVERY_S,
        most: int = MOST,
    ) -> None:
        self._what = what
        self._deliver = deliver
        self._finish = finish
        self._warn = warn
        self._every_s = every_s
        self._items: deque[T] = deque()
        self._most = most
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._put = self._delivered = 0
        self._warned = False
        self._retry_s = RETRY_S
        self._thread = threading.Thread(target=self._run, name=f"overlapwatch {what}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: T) -> None:
        """Leave one item; never waits."""
        with self._lock:
            self._put += 1
            self._items.append(item)
            if len(self._items) > self._most:
                self._items.popleft()
        self._wake.set()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Deliver what is left, once and for so long at most."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if missing := self._put - self._delivered:
            self._warn(f"{self._what}: {missing} of {self._put} steps were not delivered")

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._stop.is_set()
            pause_s = self._turn()
            if last:
                break
            self._stop.wait(pause_s)
            if self._items:  # after a failure, even if nothing new comes
                self._wake.set()
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            self._tell(error)

    def _turn(self) -> float:
        """Deliver what there is; return for how long to wait."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        if not items:
            return 0
        try:
            self._deliver(items)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            with self._lock:  # for the next time, as many as there is room for
                room = self._most - len(self._items)
                self._items.extendleft(reversed(items[-room:] if room > 0 else []))
            self._tell(error)
            pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, LONGEST_RETRY_S)
            return pause_s
        self._delivered += len(items)
        self._retry_s = RETRY_S
        return self._every_s

    def _tell(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        if isinstance(error, OverlapwatchError):
            self._warn(f"{self._what}: {error}")
        else:
            self._warn(
                f"{self._what}: {type(error).__name__}: {error}; it is tried again, training goes on"
            )
