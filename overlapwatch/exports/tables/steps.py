"""Steps, their tails, and what the tails were spent on."""

from collections.abc import Iterator

from overlapwatch.accounting.analyse import flag_words
from overlapwatch.exports.columns import Batch, Column, Type, parts, table
from overlapwatch.exports.tables.told import Told, not_known
from overlapwatch.vocabulary import OUT_OF_STATISTICS, SUMMARY

_STEP = {
    "start_ns": "boundary of the step",
    "end_ns": "boundary of the step",
    "compute_ns": "union of the compute lane",
    "communication_ns": "union of the communication lane",
    "compute_only_ns": "part: compute, no communication",
    "communication_only_ns": "part: communication, no compute (exposed)",
    "overlap_ns": "part: both (hidden)",
    "idle_ns": "part: neither",
    "first_ready_ns": "mark: the first gradients were ready to be reduced",
    "first_reduce_start_ns": "mark: the first reduction began",
    "last_compute_end_ns": "mark: forward and backward were over",
    "last_reduce_end_ns": "mark: the last reduction was over",
    "tail_ns": "critical tail: by how much it outlived compute",
    "wait_ns": "union of the waits of compute for communication",
    "bytes": "logical bytes of the collectives",
    "collectives": "how many",
    "buckets": "gradient buckets reduced; modules, with FSDP2",
    "unfinished": "collectives without a finish",
    "unobservable": "collectives whose finish nobody can see",
}
_SENT = "sent_bytes"  # a unit stands at the end of a name

STEPS = table(
    "steps",
    "one step of one rank, also those without events",
    Column("step", "number"),
    Column("flags", "what is special about it, words", Type.TEXT),
    Column("in_statistics", "whether it counts in medians and percentiles", Type.BOOLEAN),
    *(Column(_SENT if name == "bytes" else name, about) for name, about in _STEP.items()),
)


def steps(one: Told) -> Iterator[Batch]:
    """Yield its steps."""
    rows = one.analysis.rows
    for part in parts(len(rows)):
        mine = rows[part]
        flags = mine["flags"].tolist()
        columns = {
            _SENT if name == "bytes" else name: not_known(mine[name])
            for name in SUMMARY.names or ()
            if name not in {"step", "flags"}
        }
        yield STEPS.batch(
            **one.whose(len(mine)),
            step=mine["step"].tolist(),
            flags=[" ".join(flag_words(value)) for value in flags],
            in_statistics=[not value & OUT_OF_STATISTICS for value in flags],
            **columns,
        )


TAILS = table(
    "tails",
    "the tail of one step whose events are there",
    Column("step", "number"),
    Column("in_statistics", "whether it counts in medians and percentiles", Type.BOOLEAN),
    Column("first_ready_ns", "mark: the first gradients were ready to be reduced"),
    Column("first_reduce_start_ns", "mark: the first reduction began"),
    Column("last_compute_end_ns", "mark: forward and backward were over"),
    Column("last_reduce_end_ns", "mark: the last reduction was over"),
    Column("tail_ns", "max(0, last_reduce_end_ns - last_compute_end_ns)"),
    Column("last_reduction", "bucket or module of the reduction that finished last", Type.TEXT),
    Column("reductions", "gradient reductions of the step"),
    Column("without_finish", "of them without a known finish"),
    Column("because", "why the tail is not known", Type.TEXT),
)
TAIL_PIECES = table(
    "tail_pieces",
    "what a tail was spent on; the pieces of a step add up to its tail",
    Column("step", "number"),
    Column("kind", "late ready, launch delay, queue, residence, not separable", Type.TEXT),
    Column("start_ns", "on the clock of the rank"),
    Column("end_ns", "on the clock of the rank"),
    Column("length_ns", "end_ns - start_ns"),
    Column("occupied_by", "bucket or module; of a queue, the one it stood behind", Type.TEXT),
    Column("provenance", "measured, or estimated: one of its edges is", Type.TEXT),
)


def tails(one: Told) -> Iterator[Batch]:
    """Yield its tails."""
    tails = one.analysis.tails
    for part in parts(len(tails)):
        yield TAILS.rows(
            [
                {
                    **one.who,
                    "step": tail.step,
                    "in_statistics": not tail.flags & OUT_OF_STATISTICS,
                    "first_ready_ns": tail.first_ready_ns,
                    "first_reduce_start_ns": tail.first_reduce_start_ns,
                    "last_compute_end_ns": tail.last_compute_end_ns,
                    "last_reduce_end_ns": tail.last_reduce_end_ns,
                    "tail_ns": tail.tail_ns,
                    "last_reduction": tail.last_bucket or None,
                    "reductions": tail.reductions,
                    "without_finish": tail.without_finish,
                    "because": tail.because or None,
                }
                for tail in tails[part]
            ]
        )


def tail_pieces(one: Told) -> Iterator[Batch]:
    """Yield the pieces of its tails."""
    tails = one.analysis.tails
    for part in parts(len(tails)):
        yield TAIL_PIECES.rows(
            [
                {
                    **one.who,
                    "step": tail.step,
                    "kind": piece.kind.value,
                    "start_ns": piece.start_ns,
                    "end_ns": piece.end_ns,
                    "length_ns": piece.duration_ns,
                    "occupied_by": piece.bucket or None,
                    "provenance": "estimated" if piece.estimated else "measured",
                }
                for tail in tails[part]
                for piece in tail.pieces
            ]
        )
