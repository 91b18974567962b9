"""NVTX ranges in a domain of our own, so that Nsight Systems shows our steps and buckets beside its kernels.

In: names at set-up, ids on the hot path. Out: calls of the `nvtx` package. What arrives in a tool, in domain
"overlapwatch":

    push/pop    "step" (payload: the step number), "forward", "backward", "optimizer"   on the calling thread
    start/end   "AllReduce launch to finish, <bucket>"     process-wide: the finish comes from another thread
    mark        "bucket ready, <bucket>"

All strings are registered at set-up. Without a tool, without the package, or switched off, `make_ranges` returns
`NullRanges`: the same names do nothing. A tool attaches when a process starts, so this is decided once.
"""

import contextlib
from typing import Any

from overlapwatch.vocabulary import CollectiveKind, Phase

DOMAIN = "overlapwatch"


class NullRanges:
    """Does nothing.

    Attributes:
        active: whether a tool sees anything.
        because: why not.
    """

    active = False

    def __init__(self, because: str) -> None:
        self.because = because

    def name_bucket(self, owner: int, text: str, *kinds: CollectiveKind) -> None:
        """Register the names of a bucket or module."""

    def push_step(self, step: int) -> None:
        """Open the range of a step."""

    def push_phase(self, phase: int) -> None:
        """Open the range of a phase."""

    def pop(self) -> None:
        """Close the range that this thread opened last."""

    def ready(self, owner: int) -> None:
        """Mark that a bucket is ready."""

    def start(self, kind: int, owner: int) -> int:  # noqa: ARG002 - the names are the interface
        """Open the range of a collective; `end` takes what this returns, on any thread."""
        return 0

    def end(self, token: int) -> None:
        """Close the range of a collective."""

    def close(self) -> None:
        """Close what is still open."""


class Ranges(NullRanges):
    """Ranges that a tool sees. Made by `make_ranges`."""

    active = True

    def __init__(self, domain: Any) -> None:
        super().__init__("an NVTX tool is attached")
        self._domain = domain
        self._push, self._pop = domain.push_range, domain.pop_range
        self._start, self._end, self._mark = domain.start_range, domain.end_range, domain.mark
        self._step = domain.get_event_attributes(message="step", color="purple")
        self._phases = {
            int(phase): domain.get_event_attributes(message=phase.name.lower()) for phase in Phase
        }
        # What is not named in time is still told by its kind.
        self._kinds = {
            int(kind): domain.get_event_attributes(message=f"{kind.title} launch to finish")
            for kind in CollectiveKind
        }
        self._collectives: dict[tuple[int, int], Any] = {}
        self._unnamed = domain.get_event_attributes(message="bucket ready", color="green")
        self._ready: dict[int, Any] = {}
        self._open: set[int] = set()

    def name_bucket(self, owner: int, text: str, *kinds: CollectiveKind) -> None:
        """Register the names of a bucket or module, and of its collectives of these kinds."""
        make = self._domain.get_event_attributes
        self._ready[owner] = make(message=f"bucket ready, {text}", color="green")
        for kind in kinds:
            self._collectives[kind, owner] = make(message=f"{kind.title} launch to finish, {text}")

    def push_step(self, step: int) -> None:
        """Open the range of a step on this thread; its number is the payload."""
        self._step.payload = step
        self._push(self._step)

    def push_phase(self, phase: int) -> None:
        """Open the range of a phase on this thread."""
        self._push(self._phases[phase])

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self._pop()

    def ready(self, owner: int) -> None:
        """Mark that a bucket is ready."""
        self._mark(self._ready.get(owner, self._unnamed))

    def start(self, kind: int, owner: int) -> int:
        """Open the range of a collective; `end` takes what this returns, on any thread."""
        token: int = self._start(self._collectives.get((kind, owner)) or self._kinds[kind])
        self._open.add(token)
        return token

    def end(self, token: int) -> None:
        """Close the range of a collective; a second end of the same one is ignored."""
        with contextlib.suppress(KeyError):
            self._open.remove(token)
            self._end(token)

    def close(self) -> None:
        """Close the collectives that never finished, so that no range of ours stays open."""
        while self._open:
            self.end(next(iter(self._open)))


def make_ranges(enabled: bool = True) -> NullRanges:  # noqa: FBT001, FBT002 - the one thing it asks
    """Return ranges that a tool sees, or `NullRanges` that say why not. Never raises."""
    if not enabled:
        return NullRanges("NVTX is switched off")
    try:
        import nvtx  # noqa: PLC0415 - a missing package must not matter

        if not nvtx.enabled():
            return NullRanges("NVTX_DISABLE is set")
        domain = nvtx.get_domain(DOMAIN)
        if (
            type(domain) is not nvtx.Domain
        ):  # the package's stand-in for a domain that nobody listens to
            return NullRanges("no NVTX tool is attached to this process")
        return Ranges(domain)
    except ImportError:
        return NullRanges("the nvtx package is not installed")
    except Exception as error:  # noqa: BLE001 - an annotation is never worth a job
        return NullRanges(f"the nvtx package failed: {type(error).__name__}: {error}")
