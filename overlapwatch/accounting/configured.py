"""What was configured to overlap, held against what was measured, with the reasons that the recording supports.

In: the facts that a log holds of the framework's options, and the window's collectives. Out: a `Configured`: options in
words, a `Verdict` for each option that asks for overlap, what holds by design, and what nobody could see.

A verdict's reasons are evidence, never a guess: each is a count or a value of this run that is enough to explain why
nothing, or little, could be hidden. Where none is found the verdict says only what was measured.

    overlap_grad_reduce on, 7 bucket groups, all launched before backward ended    hidden 72 %     no reason needed
    overlap_grad_reduce on, bucket_size 40,000,000, model of 43,072 elements       hidden 0 %      one bucket holds all
    overlap_grad_reduce on, pipeline rank 1                                        hidden 0 %      one bucket, by design

Only Megatron-Core tells its options so far, as they were when the watch began: what a sweep changed since is not
judged. It does not know whether an option that is off would help.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.lanes import Lanes
from overlapwatch.accounting.swept import not_judged, swept
from overlapwatch.timeline.intervals import intersect, total, union
from overlapwatch.timeline.model import Timeline, Unknown
from overlapwatch.vocabulary import CollectiveKind, NameKind, Phase, StepFlag

PREFIX = "megatron "
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
LITTLE = 0.01
"""A share of communication hidden that counts as nothing."""

_SIZES = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "virtual_pipeline_model_parallel_size": "virtual pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One option that asks for overlap, and what came of it.

    Args:
        option: its name.
        what: what it is to hide.
        count: collectives of the window that it is about.
        in_time: of them launched while the compute that could hide them still ran; None where that is not known.
        spans: of them with a known beginning and end.
        union_ns, hidden_ns: their time, and the part beside compute; None without any span.
        reasons: why little or nothing was hidden, as far as this recording shows it.

    """

    option: str
    what: str
    count: int
    in_time: int | None
    spans: int
    union_ns: int | None
    hidden_ns: int | None
    reasons: tuple[str, ...]

    @property
    def nothing_hidden(self) -> bool:
        """Whether it was measured that nothing worth the name was hidden."""
        return bool(self.union_ns) and (self.hidden_ns or 0) < LITTLE * (self.union_ns or 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; what is not known is null."""
        return {
            "option": self.option,
            "what": self.what,
            "count": self.count,
            "in_time": self.in_time,
            "spans": self.spans,
            "union_ns": self.union_ns,
            "hidden_ns": self.hidden_ns,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class Configured:
    """What the framework was told, and what came of it.

    Args:
        framework: which, and its version.
        sizes: parallel sizes above 1, in words.
        switched_on: options that are on.
        values: further options, name -> value.
        buckets: sentences about the size of buckets, as given and as in force.
        verdicts: options that ask for overlap.
        by_design: what the framework does so whatever is configured.
        unknown: what it does out of everybody's sight.

    """

    framework: str
    sizes: tuple[tuple[str, int], ...]
    switched_on: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    buckets: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    by_design: tuple[str, ...]
    unknown: tuple[Unknown, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the value of `configured` in the JSON of a report."""
        return {
            "framework": self.framework,
            "sizes": dict(self.sizes),
            "switched_on": list(self.switched_on),
            "values": dict(self.values),
            "buckets": list(self.buckets),
            "verdicts": [one.to_dict() for one in self.verdicts],
            "by_design": list(self.by_design),
        }


@dataclass(frozen=True, slots=True)
class _Facts:
    """The options as the log has them."""

    of: Mapping[str, str]
    connections: str | None
    device: str

    def on(self, name: str) -> bool:
        return self.of.get(name) == "on"

    def number(self, name: str) -> int | None:
        text = self.of.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else None

    def numbers(self, name: str) -> list[int]:
        return [int(word) for word in self.of.get(name, "").split() if word.isdecimal()]

    @property
    def chunks(self) -> list[str]:
        """The suffixes under which facts of the model chunks are told."""
        found = [name.removeprefix("bucket groups") for name in self.of]
        return [
            suffix
            for name, suffix in zip(self.of, found, strict=True)
            if name.startswith("bucket groups")
        ]


def configured(
    about: Mapping[str, str],
    tl: Timeline,
    launched: NDArray[np.void],
    lanes: Lanes,
    flags: NDArray[np.uint32],
    notes: Sequence[str] = (),
) -> Configured | None:
    """Return what was configured and what came of it; None where no framework told its options.

    Args:
        about: facts of the input, as `Recording.about` has them.
        tl: the timeline.
        launched: RECORD rows of the window's collectives, each once, with and without a span.
        lanes: the window's lanes.
        flags: StepFlag of all selected steps.
        notes: sentences of the input, among them those of a sweep.

    """
    told = {name[len(PREFIX) :]: v for name, v in about.items() if name.startswith(PREFIX)}
    if not told:
        return None
    facts = _Facts(told, about.get(CONNECTIONS), tl.origin.device)
    sizes = [(word, facts.number(name) or 1) for name, word in _SIZES.items()]
    switched_on = tuple(n for n, value in told.items() if value == "on" and _matters(n, facts))
    left = {"version", "wrapper", "bucket_size", "pipeline rank", *_SIZES}
    values = [
        (name, value)
        for name, value in told.items()
        if value not in {"on", "off", "none"}
        and name not in left
        and not name.startswith("bucket")
        and _matters(name, facts)
    ]
    changed = swept(notes)
    version = f" {told['version']}" if told.get("version") else ""
    return Configured(
        framework=f"Megatron-Core{version}, {told.get('wrapper', 'wrapper not known')}",
        sizes=tuple((word, size) for word, size in sizes if size > 1),
        switched_on=switched_on,
        values=tuple(values),
        buckets=tuple(_bucket_sentences(facts)),
        verdicts=tuple(
            one for one in _verdicts(facts, tl, launched, lanes) if one.option not in changed
        ),
        by_design=tuple(_by_design(facts, flags)),
        unknown=(*_out_of_sight(facts), *not_judged(changed)),
    )


def _matters(name: str, facts: _Facts) -> bool:
    """Leave out options of what this job does not do."""
    if "p2p_comm" in name:
        return (facts.number("pipeline_model_parallel_size") or 1) > 1
    if name.startswith("moe_flex"):
        return facts.of.get("moe_token_dispatcher_type") == "flex"
    if name.startswith("moe_"):
        return (facts.number("expert_model_parallel_size") or 1) > 1
    if name.startswith("cp_"):
        return (facts.number("context_parallel_size") or 1) > 1
    if name == "num_distributed_optimizer_instances":
        return (facts.number(name) or 1) > 1
    return name != "data_parallel_sharding_strategy" or "fsdp" in facts.of.get("wrapper", "")


# -- buckets -----------------------------------------------------------------------------------


def _bucket_sentences(facts: _Facts) -> list[str]:
    given, kind = facts.of.get("bucket_size"), facts.of.get("bucket_size type")
    told = []
    if kind is not None:
        told.append(
            f"bucket_size={given} is of type {kind}, which Megatron does not check: it counts as a number of elements"
        )
    for suffix in facts.chunks:
        limit = facts.number(f"bucket_size in force{suffix}")
        elements = facts.numbers(f"bucket elements{suffix}")
        sizes = facts.numbers(f"bucket bytes{suffix}")
        count = facts.number(f"bucket groups{suffix}") or len(elements)
        width = sizes[0] / elements[0] if elements and sizes and elements[0] else 0
        text = f"{count:,} bucket group{'s' if count != 1 else ''}{suffix}"
        if limit is None:
            text += ", without a limit"
            if given not in {None, "none"}:
                text += f" (bucket_size={given} is not in force here)"
        else:
            text += f" of up to {limit:,} elements before padding"
            text += f", {_binary(limit * width)} of gradients" if width else ""
        if elements:
            most = max(zip(elements, sizes, strict=False), default=(0, 0))
            text += f"; the largest has {most[0]:,} elements, {_binary(most[1])}"
        told.append(text)
    return told


def _binary(count: float) -> str:
    """Return bytes in the binary unit that reads best: bucket sizes are thought of so."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:,.4g} {unit}"
    return f"{count:,.0f} B"


# -- verdicts ----------------------------------------------------------------------------------


def _verdicts(
    facts: _Facts, tl: Timeline, launched: NDArray[np.void], lanes: Lanes
) -> list[Verdict]:
    found = []
    owners = {
        kind: [name.id for name in tl.names.values() if name.kind is kind]
        for kind in (NameKind.BUCKET, NameKind.MODULE, NameKind.LAYER)
    }
    if facts.on("overlap_grad_reduce"):
        mine = np.isin(launched["owner"], owners[NameKind.BUCKET])
        in_time = _before_backward_ends(launched[mine], tl)
        verdict = _verdict("overlap_grad_reduce", "gradients", launched[mine], lanes, in_time)
        found.append(_with(verdict, _why_gradients(verdict, facts)))
    if facts.on("overlap_param_gather"):
        mine = np.isin(launched["owner"], owners[NameKind.MODULE])
        mine &= launched["collective"] == CollectiveKind.ALL_GATHER
        mine &= launched["phase"] == Phase.FORWARD
        verdict = _verdict("overlap_param_gather", "parameters", launched[mine], lanes, None)
        found.append(_with(verdict, _why_parameters(verdict, facts)))
    exchanges = (
        ("overlap_p2p_comm", "pipeline exchanges", ("pipeline",)),
        ("overlap_moe_expert_parallel_comm", "exchanges of experts", (": dispatch", ": combine")),
    )
    for option, what, endings in exchanges:
        if facts.on(option):
            ids = [one for one in owners[NameKind.LAYER] if tl.names[one].text.endswith(endings)]
            mine = np.isin(launched["owner"], ids)
            verdict = _verdict(option, what, launched[mine], lanes, None)
            found.append(_with(verdict, _connections(verdict, facts)))
    return found


def _verdict(
    option: str, what: str, records: NDArray[np.void], lanes: Lanes, in_time: int | None
) -> Verdict:
    """Return the verdict without reasons."""
    here = np.flatnonzero(_same(lanes.records, records))
    busy = union(lanes.start[here], lanes.end[here])
    spans = len(np.unique(lanes.index[here]))
    return Verdict(
        option=option,
        what=what,
        count=len(records),
        in_time=in_time,
        spans=spans,
        union_ns=total(busy) if spans else None,
        hidden_ns=total(intersect(busy, lanes.compute)) if spans else None,
        reasons=(),
    )


def _same(records: NDArray[np.void], chosen: NDArray[np.void]) -> NDArray[np.bool_]:
    """Say which of `records` are among `chosen`: by owner, launch and kind."""
    wanted = set(
        zip(
            chosen["owner"].tolist(),
            chosen["launch"].tolist(),
            chosen["collective"].tolist(),
            strict=True,
        )
    )
    return np.array(
        [
            one in wanted
            for one in zip(
                records["owner"].tolist(),
                records["launch"].tolist(),
                records["collective"].tolist(),
                strict=True,
            )
        ],
        np.bool_,
    )


def _with(verdict: Verdict, reasons: list[str]) -> Verdict:
    return replace(verdict, reasons=tuple(reasons))


def _before_backward_ends(records: NDArray[np.void], tl: Timeline) -> int | None:
    """Return how many were launched before the last backward of their step ended; None without marks."""
    backward = tl.phases.phase == Phase.BACKWARD
    ends = np.sort(tl.phases.end[backward])
    if not len(ends) or not len(records):
        return None
    steps = {int(row["step"]): (int(row["start"]), int(row["end"])) for row in tl.steps}
    in_time = 0
    for number in np.unique(records["step"]).tolist():
        if number not in steps:
            return None
        start, end = steps[number]
        inside = ends[(ends > start) & (ends <= end)]
        if len(inside):
            launch = records["launch"][records["step"] == number]
            in_time += int((launch < inside[-1]).sum())
    return in_time


def _poor(verdict: Verdict) -> bool:
    """Whether there is something to explain: nothing hidden, or nothing sent in time."""
    return verdict.nothing_hidden or (verdict.count > 0 and verdict.in_time == 0)


def _why_gradients(verdict: Verdict, facts: _Facts) -> list[str]:
    if not _poor(verdict):
        return []
    reasons = []
    rank = facts.number("pipeline rank") or 0
    single = [suffix for suffix in facts.chunks if facts.number(f"bucket groups{suffix}") == 1]
    if rank > 0 and len(single) == len(facts.chunks):
        reasons.append(
            f"by design: pipeline rank {rank} > 0 uses a single bucket, complete only when backward ends"
        )
    elif single:
        elements = facts.numbers(f"bucket elements{single[0]}")
        limit = facts.number(f"bucket_size in force{single[0]}")
        if limit is not None and elements and limit >= elements[0]:
            reasons.append(
                f"bucket_size of {limit:,} elements holds all {elements[0]:,} gradients of this rank: one bucket, "
                "complete only when backward ends"
            )
        elif limit is None:
            reasons.append("one bucket without a limit holds all gradients of this rank")
    if verdict.in_time == 0:
        reasons.append(
            f"none of {verdict.count:,} reductions was launched before the last backward of its step ended"
        )
    elif verdict.in_time is not None and verdict.nothing_hidden:
        reasons.append(
            f"{verdict.in_time:,} of {verdict.count:,} reductions were launched before backward ended, and yet they "
            "ran beside no compute"
        )
    return reasons + _connections(verdict, facts)


def _why_parameters(verdict: Verdict, facts: _Facts) -> list[str]:
    if not _poor(verdict):
        return []
    reasons = []
    if verdict.count == 0:
        reasons.append("no parameters were gathered in a forward of this window")
    groups = [facts.number(f"bucket groups{suffix}") for suffix in facts.chunks]
    if groups and all(count == 1 for count in groups):
        reasons.append("one bucket group holds all parameters: the first module needs all of it")
    return reasons + _connections(verdict, facts)


def _connections(verdict: Verdict, facts: _Facts) -> list[str]:
    """Put the variable beside a measured zero, where it has an effect."""
    if not verdict.nothing_hidden or not facts.device.startswith("cuda"):
        return []
    if facts.connections is None:
        return [f"{CONNECTIONS} was not set: it is not the cause"]
    if facts.connections == "1":
        text = f"{CONNECTIONS}=1: all streams share one hardware queue, so communication launched behind compute"
        return [f"{text} waits for it; jobs have got their overlap back by leaving it unset"]
    return [f"{CONNECTIONS}={facts.connections}"]


# -- by design ---------------------------------------------------------------------------------


def _by_design(facts: _Facts, flags: NDArray[np.uint32]) -> list[str]:
    told = []
    first = int((flags & np.uint32(StepFlag.FIRST_BATCH) != 0).sum())
    if first:
        told.append(
            "first batch: Megatron sends no gradient before its end, to learn how often each becomes ready; it is "
            "not in statistics"
        )
    rank = facts.number("pipeline rank") or 0
    if rank > 0:
        told.append(
            f"pipeline rank {rank}: stages after the first use a single bucket, whatever bucket_size says"
        )
    later = [suffix for suffix in facts.chunks if suffix and not suffix.endswith(" 0")]
    if later:
        told.append("model chunks after the first use a single bucket each")
    if facts.of.get("overlap_grad_reduce") == "off":
        told.append(
            "without overlap_grad_reduce bucket_size is not in force: one bucket, sent after backward"
        )
    if facts.on("overlap_param_gather") and not facts.on("align_param_gather"):
        told.append(
            "the first all-gather of an iteration is launched when its parameters are needed: always exposed; each "
            "later one is launched when the one before it is used"
        )
    if facts.on("sequence_parallel"):
        told.append(
            "in forward, sequence-parallel gathers and reduce-scatters are synchronous: always exposed"
        )
    return told


def _out_of_sight(facts: _Facts) -> list[Unknown]:
    found = []
    if facts.on("tp_comm_overlap"):
        found.append(
            Unknown(
                "tensor-parallel communication through user buffers (tp_comm_overlap)",
                "it runs inside Transformer Engine's kernels, not through torch.distributed",
            )
        )
    if facts.of.get("moe_token_dispatcher_type") == "flex":
        backend = facts.of.get("moe_flex_dispatcher_backend", "DeepEP")
        found.append(
            Unknown(
                f"the exchanges of experts (flex dispatcher, {backend})",
                "they run in kernels of their own, not through torch.distributed",
            )
        )
    graphs = facts.of.get("cuda_graph_impl", "none")
    if graphs != "none" or facts.on("enable_cuda_graph"):
        scope = facts.of.get("cuda_graph_scope", "")
        found.append(
            Unknown(
                f"collectives inside CUDA graphs{f' ({scope})' if scope else ''}",
                "a replayed graph launches them without the host",
            )
        )
    if facts.of.get("wrapper") == "megatron-fsdp":
        found.append(
            Unknown(
                "which parameters a collective of Megatron-FSDP carries",
                "its buckets are not watched; its collectives are, by kind, group and phase",
            )
        )
    return found
