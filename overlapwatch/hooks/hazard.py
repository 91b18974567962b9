"""Which device events may be recorded without destroying what they measure.

In: the kind of device, the environment, what is known of the GPU and of the job. Out: an `EventPlan`: a policy, one
sentence why, and sentences to warn with. A pure function; reads nothing itself.

The hazard: with CUDA_DEVICE_MAX_CONNECTIONS=1 all streams share one hardware queue, and events that take a time,
recorded round a collective, keep the kernels behind them from starting: all overlap is gone (pytorch#143890,
TransformerEngine#1353). Megatron asks for that setting with tensor or context parallelism before Blackwell, so it is
met in practice. Known from those threads and from source; docs/gpu.md says what has been verified on a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
BLACKWELL = 10
"""Major compute capability from which Megatron no longer asks for one connection."""

_TRUE = {"1", "y", "yes", "t", "true"}  # as torch reads its switches
_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


class EventPolicy(Enum):
    """What is recorded on the device. The values are those of the setting `events`."""

    HOST_ONLY = "host"  # no device events at all
    EVENT_PAIRS = "pairs"  # an event before and after each collective, and at phase boundaries
    PHASE_EVENTS_ONLY = (
        "phases"  # at phase boundaries only, none while communication is outstanding
    )


@dataclass(frozen=True, slots=True)
class EventPlan:
    """What was decided.

    Args:
        policy: which events are recorded.
        observer_stream: whether a stream of ours may wait for collectives, to see their finish.
        because: one sentence.
        warnings: sentences about settings that disturb overlap without us, or because of what was asked for.
    """

    policy: EventPolicy
    observer_stream: bool
    because: str
    warnings: tuple[str, ...] = ()


def event_policy(
    device_type: str,
    environ: Mapping[str, str],
    arch_major: int | None = None,
    tensor_parallel: int | None = None,
    wanted: str = "auto",
) -> EventPlan:
    """Choose the policy.

    Args:
        device_type: as torch spells it: "cpu", "cuda", ...
        environ: the process environment.
        arch_major: major compute capability; None when not known.
        tensor_parallel: size of the tensor- or context-parallel group; None when not known.
        wanted: "auto", or an `EventPolicy` value that the user chose.
    """
    if device_type == "cpu":
        asked = f", so events={wanted} has no effect" if wanted not in ("auto", "host") else ""
        because = f"the CPU has no device events{asked}: host clock"
        return EventPlan(EventPolicy.HOST_ONLY, observer_stream=False, because=because)
    warnings = _foreign_hazards(environ) if device_type == "cuda" else []
    policy, because = _safe_policy(device_type, environ, arch_major, tensor_parallel)
    if wanted != "auto":
        chosen = EventPolicy(wanted)
        if chosen is EventPolicy.EVENT_PAIRS and policy is not chosen:
            warnings.append(f"events=pairs was asked for although {because}")
        policy, because = chosen, f"events={wanted} was asked for"
    observer = policy is EventPolicy.EVENT_PAIRS
    if observer and (name := _switched_on(environ, _BLOCKING)):
        observer = False
        because += (
            f"; {name} is on, so waiting for a collective blocks the host: no observer stream"
        )
    return EventPlan(policy, observer, because, tuple(warnings))


def _safe_policy(
    device_type: str,
    environ: Mapping[str, str],
    arch_major: int | None,
    tensor_parallel: int | None,
) -> tuple[EventPolicy, str]:
    if device_type != "cuda":
        return (
            EventPolicy.PHASE_EVENTS_ONLY,
            f"whether timed events disturb overlap on {device_type} has not been checked",
        )
    connections = _connections(environ)
    if connections is None:
        return EventPolicy.EVENT_PAIRS, f"{CONNECTIONS} is not set (the driver's default is 8)"
    if connections > 1:
        return EventPolicy.EVENT_PAIRS, f"{CONNECTIONS}={connections} leaves streams independent"
    because = f"{CONNECTIONS}=1: timed events round collectives would remove all overlap"
    return EventPolicy.PHASE_EVENTS_ONLY, because + _who_needs_it(arch_major, tensor_parallel)


def _who_needs_it(arch_major: int | None, tensor_parallel: int | None) -> str:
    if arch_major is not None and arch_major >= BLACKWELL:
        return " (Megatron does not need this setting on this GPU: try the job without it)"
    if tensor_parallel is not None and tensor_parallel > 1:
        return " (Megatron needs this setting for tensor or context parallelism on this GPU)"
    if tensor_parallel == 1:
        return " (nothing in this job needs the setting: it can be removed)"
    return ""


def _foreign_hazards(environ: Mapping[str, str]) -> list[str]:
    found = []
    if name := _switched_on(environ, _TIMING):
        where = (
            "and removes the overlap"
            if _connections(environ) == 1
            else f"which removes the overlap where {CONNECTIONS}=1"
        )
        found.append(f"{name} is on: PyTorch itself times every collective, {where}")
    if _switched_on(environ, ("CUDA_LAUNCH_BLOCKING",)):
        found.append("CUDA_LAUNCH_BLOCKING is on: every launch waits, so nothing can overlap")
    text = environ.get(CONNECTIONS, "").strip()
    if text and _connections(environ) is None:
        found.append(f"{CONNECTIONS}={text} is not a number from 1 to 32; taken as not set")
    return found


def _connections(environ: Mapping[str, str]) -> int | None:
    text = environ.get(CONNECTIONS, "").strip()
    return int(text) if text.isdecimal() and 1 <= int(text) <= 32 else None


def _switched_on(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the name under which a switch is on; an older name counts when the newer one is absent."""
    for name in names:
        if name in environ:
            return name if environ[name].strip().lower() in _TRUE else None
    return None
