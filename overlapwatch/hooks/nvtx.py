"""NVTX ranges in a domain of our own, so that Nsight Systems shows our steps and buckets beside its kernels.

In: names at set-up, ids on the hot path. Out: calls of the `nvtx` package. What arrives in a tool, in domain
"overlapwatch":

    push/pop    "step" (payload: the step number)          on the training thread
    start/end   "forward", "backward", "optimizer"         process-wide: on a GPU a backward begins on autograd's thread
    start/end   "AllReduce launch to finish, <bucket>"     process-wide: the finish comes from another thread
    start/end   "AllGather launch to finish, <module>"     likewise, with FSDP2; also ReduceScatter
    mark        "bucket ready, <bucket>"

All strings are registered at set-up. Without a tool, without the package, or switched off, `make_ranges` returns
`NullRanges`: the same names do nothing. A tool attaches when a process starts, so this is decided once.
"""

from typing import Any

from overlapwatch.vocabulary import CollectiveKind, Phase

DOMAIN = "overlapwatch"
OLDEST = "0.2.12"
"""The first release of the nvtx package whose domains have ranges of their own."""


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
        """Register the names of a bucket."""

    def name_module(self, owner: int, text: str, *kinds: CollectiveKind) -> None:
        """Register the names of a module's collectives; a module is never marked as ready."""

    def push_step(self, step: int) -> None:
        """Open the range of a step."""

    def start_phase(self, phase: int) -> int:  # noqa: ARG002 - the names are the interface
        """Open the range of a phase; `end` takes what this returns, on any thread."""
        return 0

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
        self._modules: set[int] = set()
        self._open: set[int] = set()

    def name_bucket(self, owner: int, text: str, *kinds: CollectiveKind) -> None:
        """Register the names of a bucket, and of its collectives of these kinds."""
        make = self._domain.get_event_attributes
        self._ready[owner] = make(message=f"bucket ready, {text}", color="green")
        for kind in kinds:
            self._collectives[kind, owner] = make(message=f"{kind.title} launch to finish, {text}")

    def name_module(self, owner: int, text: str, *kinds: CollectiveKind) -> None:
        """Register the names of a module's collectives; a module is never marked as ready."""
        make = self._domain.get_event_attributes
        self._modules.add(owner)
        for kind in kinds:
            self._collectives[kind, owner] = make(message=f"{kind.title} launch to finish, {text}")

    def push_step(self, step: int) -> None:
        """Open the range of a step on this thread; its number is the payload."""
        self._step.payload = step
        self._push(self._step)

    def start_phase(self, phase: int) -> int:
        """Open the range of a phase; `end` takes what this returns, on any thread."""
        token: int = self._start(self._phases[phase])
        self._open.add(token)
        return token

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self._pop()

    def ready(self, owner: int) -> None:
        """Mark that a bucket is ready."""
        if owner not in self._modules:
            self._mark(self._ready.get(owner, self._unnamed))

    def start(self, kind: int, owner: int) -> int:
        """Open the range of a collective; `end` takes what this returns, on any thread."""
        token: int = self._start(self._collectives.get((kind, owner)) or self._kinds[kind])
        self._open.add(token)
        return token

    def end(self, token: int) -> None:
        """Close the range of a collective; a second end of the same one is ignored."""
        try:
            self._open.remove(token)
        except KeyError:
            return
        self._end(token)

    def close(self) -> None:
        """Close what never finished, so that no range of ours stays open."""
        while self._open:
            self.end(next(iter(self._open)))


def make_ranges(enabled: bool = True) -> NullRanges:  # noqa: FBT001, FBT002 - the one thing it asks
    """Return ranges that a tool sees, or `NullRanges` that say why not. Never raises."""
    if not enabled:
        return NullRanges("NVTX is switched off")
    try:
        import nvtx  # noqa: PLC0415 - a missing package must not matter

        domain = nvtx.get_domain(DOMAIN) if hasattr(nvtx, "get_domain") else None
        because = _why_nobody_sees(nvtx, domain)
        return NullRanges(because) if because else Ranges(domain)
    except ImportError:
        return NullRanges("the nvtx package is not installed")
    except Exception as error:  # noqa: BLE001 - an annotation is never worth a job
        return NullRanges(f"the nvtx package failed: {type(error).__name__}: {error}")


def _why_nobody_sees(nvtx: Any, domain: Any) -> str:
    if not nvtx.enabled():
        return "NVTX_DISABLE is set"
    if not hasattr(domain, "push_range"):
        return f"the nvtx package is too old; {OLDEST} or newer is needed"
    if not hasattr(domain, "handle"):  # the package's stand-in when nobody listens
        return "no NVTX tool is attached to this process"
    return ""
