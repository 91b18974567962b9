"""The words everything else is written in: kinds, phases, flags, and the three record layouts.

In: nothing. Out: enums, numpy dtypes and the `Name` that a record's ids refer to. The dtypes are shared by the ring,
the log, the timeline and the accounting, so a span travels from the hook to the report without being copied into
another shape. Terms are those of docs/definitions.md.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

NOT_KNOWN = -1
"""In a summary: this number could not be known. Never printed as a number."""


class RecordKind(IntEnum):
    """What a record is a span of."""

    NONE = 0
    STEP = 1  # one training step; start and finish are its boundaries
    PHASE = 2  # forward, backward or optimizer work of one module
    COLLECTIVE = 3  # one collective or point-to-point operation
    WAIT = 4  # compute stood still for communication
    MARK = 5  # an instant (start == finish)
    COPY = 6  # copying into or out of a collective's buffer; neither lane
    HELD = 7  # a module's unsharded parameters were held in memory; no finish while they are


class Phase(IntEnum):
    """Where in a step something happened."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class CollectiveKind(IntEnum):
    """Kinds of communication, in the field's spelling (see `title`)."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    SEND_RECV = 7
    BARRIER = 8
    GATHER = 9
    SCATTER = 10

    @property
    def title(self) -> str:
        """The name used in reports: `AllReduce`, `SendRecv`, ..."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class RecordFlag(IntFlag):
    """Provenance of a record's times, and how it came to be.

    A time that is present (not 0) and not flagged is *measured*. A finish of 0 means "still running" unless
    FINISH_UNOBSERVABLE says that nobody could have seen it.
    """

    READY_ESTIMATED = 1
    LAUNCH_ESTIMATED = 2
    START_ESTIMATED = 4
    FINISH_ESTIMATED = 8
    FINISH_UNOBSERVABLE = 16
    SYNCHRONOUS = 32  # the caller blocked until the finish
    PREFETCHED = 64
    FAILED = 128  # the collective ended in an error


class StepFlag(IntFlag):
    """What is special about a step."""

    UNBUCKETED = (
        1  # DDP's first iterations: one bucket holds the whole model; kept out of statistics
    )
    REBUILT = 2  # the buckets were laid out anew in this step; kept out of statistics
    SHADOW = 4  # recording was off on purpose, to measure our own cost
    SLOW = 8  # slower than the running p99 when it ended
    UNFINISHED = 16  # a collective had no finish when the step was summed up
    ACCUMULATING = 32  # several backward passes, some without synchronisation
    DISTURBED = 64  # a kernel-level window or a change of settings ran in this step
    EVENTS_KEPT = 128  # the step's records are in the log, not only its summary
    PARTIAL = 256  # records of this step were lost or the job ended inside it
    FIRST_BATCH = 512  # Megatron's first: it sends no gradient before the end, to learn which come


OUT_OF_STATISTICS = (
    StepFlag.UNBUCKETED
    | StepFlag.REBUILT
    | StepFlag.SHADOW
    | StepFlag.DISTURBED
    | StepFlag.PARTIAL
    | StepFlag.FIRST_BATCH
)
"""Steps with any of these flags are listed but stay out of medians and percentiles."""


class NameKind(IntEnum):
    """What a `Name` names."""

    BUCKET = 1
    MODULE = 2
    PARAMETER = 3
    GROUP = 4
    OPTIMIZER = 5
    OPERATION = 6
    LAYER = 7  # a place in the model or its schedule that exchanges activations, not parameters


@dataclass(frozen=True, slots=True)
class Name:
    """What an id in a record stands for. Sent once.

    `members` are parameter ids (of a bucket, in the bucket's order) or global ranks (of a group); `elements` and
    `bytes` are totals, 0 where they make no sense.
    """

    id: int
    kind: NameKind
    text: str
    members: tuple[int, ...] = ()
    elements: int = 0
    bytes: int = 0
    dtype: str = ""


RECORD = np.dtype(
    [
        ("kind", "u1"),  # RecordKind
        ("phase", "u1"),  # Phase
        ("collective", "u1"),  # CollectiveKind
        ("flags", "u1"),  # RecordFlag
        ("step", "<u4"),  # step number
        ("owner", "<u4"),  # id of a Name: bucket, module or parameter; 0 = not known
        ("group", "<u2"),  # id of a GROUP Name (its own numbering); 0 = not known
        ("stream", "<u2"),  # stream number on the device; 0 on the host
        ("sequence", "<u4"),  # position in the group's order, from 1; 0 = not known
        ("cause", "<u4"),  # gating parameter of a bucket, or the module that prefetched
        ("bytes", "<i8"),  # logical message bytes
        ("ready", "<i8"),  # ns on this rank's clock; 0 = not yet, or not known
        ("launch", "<i8"),
        ("start", "<i8"),
        ("finish", "<i8"),
    ]
)
"""One span, 64 bytes. A COLLECTIVE uses all four times, every other kind `start` and `finish`.

`collective` and `owner` of a WAIT say what was waited for, where that is known: ALL_GATHER, a use of
a module's unsharded parameters, written at each use however short; REDUCE_SCATTER, gradients. Of a
COPY they say whose collective it belongs to. `bytes` of a HELD are the unsharded bytes held.
"""

SUMMARY = np.dtype(
    [
        ("step", "<u4"),
        ("flags", "<u4"),  # StepFlag
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        # The partition of the step's window; NOT_KNOWN where it cannot be known (a shadow step).
        ("compute_ns", "<i8"),  # union of the compute lane
        ("communication_ns", "<i8"),  # union of the communication lane
        ("compute_only_ns", "<i8"),
        ("communication_only_ns", "<i8"),  # exposed
        ("overlap_ns", "<i8"),  # hidden
        ("idle_ns", "<i8"),
        # The four marks of the tail, on this rank's clock, and the critical tail.
        ("first_ready_ns", "<i8"),
        ("first_reduce_start_ns", "<i8"),
        ("last_compute_end_ns", "<i8"),
        ("last_reduce_end_ns", "<i8"),
        ("tail_ns", "<i8"),
        ("wait_ns", "<i8"),  # union of the spans in which compute waited for communication
        ("bytes", "<i8"),  # logical bytes of the collectives
        ("collectives", "<u4"),
        ("buckets", "<u4"),  # gradient buckets reduced; with FSDP2, modules whose gradients were
        ("unfinished", "<u4"),  # collectives without a finish
        ("unobservable", "<u4"),  # collectives whose finish nobody can see
    ]
)
"""One step of one rank in numbers: what the live line prints and what the log keeps of every step."""

PAYLOAD = np.dtype(
    [
        ("collective", "u1"),  # CollectiveKind
        ("group", "<u2"),  # id of a GROUP Name: the communicator; 0 = not known
        ("peer", "<i4"),  # peer or root rank; -1 = none or not known
        (
            "bytes",
            "<i8",
        ),  # as the call was given them (see docs/definitions.md for what that means); -1 = not known
        ("start", "<i8"),  # host ns of the call
        ("end", "<i8"),
        ("kernel", "<i4"),  # index of the communication record it is attributed to; -1 = none
    ]
)
"""One call of the communication library as a profile recorded it: an NCCL API range, a `record_param_comms`."""

SWEPT = "sweep: "
"""How a note in a log begins that tells which setting a sweep brought into force."""

GRADIENT_READY = np.dtype(
    [
        ("step", "<u4"),
        ("parameter", "<u4"),  # id of a PARAMETER Name
        ("ready", "<i8"),  # ns on this rank's clock
    ]
)
"""When one parameter's gradient was complete, on sampled steps."""
