"""Everything a report tells of one rank: a Recording and a Selection -> an Analysis.

In: what a source read, which steps or moments are asked for, and the rules for steps and phases
that the input itself does not mark. Out: one frozen `Analysis` that reports and JSON are made of.
It only puts together what the other modules of this folder compute.

The window of a log is the selected steps that are in statistics and whose events were kept. The
time between them (steps dropped by sampling, shadow steps, the unbucketed first iteration) is not
recorded and belongs to no part:

| steps kept, in statistics   | window   | not recorded |
|-----------------------------|----------|--------------|
| 3: 0-10, 4: 10-20, 9: 60-70 | 30 of 70 | 20-60        |

The window of a profile is its whole capture, unless steps or moments are selected. Numbers over all
steps (`steps`, `shadow`) come from the summaries, which a log keeps of every step and which are
made here, by the same accounting, for an input without them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapwatch.accounting.buckets import BucketTable, bucket_table
from overlapwatch.accounting.call_sites import CallSites, call_sites
from overlapwatch.accounting.calls import Calls, calls_of, calls_of_records, payloads_of
from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.configured import Configured, configured
from overlapwatch.accounting.contention import Contention, contention
from overlapwatch.accounting.exposed import Exposed, exposed
from overlapwatch.accounting.fused import Fused, fused
from overlapwatch.accounting.kinds import kinds
from overlapwatch.accounting.lanes import Lanes, lanes_of
from overlapwatch.accounting.layers import LayerTable, layer_table
from overlapwatch.accounting.messages import InFlight, Messages, in_flight, messages
from overlapwatch.accounting.partition import Partition, partition
from overlapwatch.accounting.phases import phases
from overlapwatch.accounting.ranks.table import RankTable, rank_table
from overlapwatch.accounting.rates import Rate, rates
from overlapwatch.accounting.selection import Choice, Selection, choose
from overlapwatch.accounting.shadow import ShadowCost, shadow_cost
from overlapwatch.accounting.split import Split
from overlapwatch.accounting.steps import StepStatistics, step_statistics
from overlapwatch.accounting.summarize import summarize
from overlapwatch.accounting.tail import StepTail, step_tails
from overlapwatch.accounting.tails import TailDistribution, distribution
from overlapwatch.accounting.units.told import Units, units
from overlapwatch.accounting.window import Window
from overlapwatch.timeline.model import Origin, Recording, Skipped, Timeline, Unknown
from overlapwatch.timeline.phase_rules import PhaseRule, with_phases
from overlapwatch.timeline.records import from_marks
from overlapwatch.timeline.step_rules import RECORDED, AnchorRule, with_steps
from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, SUMMARY, StepFlag

_NEVER_UNKNOWN = ("step", "flags", "collectives", "buckets", "unfinished", "unobservable")


@dataclass(frozen=True, slots=True)
class Rules:
    """How steps and phases are told where the input does not mark them: see `phase_rules`."""

    phases: PhaseRule = "auto"
    anchors: AnchorRule = field(default_factory=AnchorRule)


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """What one input says about one rank on one device.

    Args:
        origin, state, about: where it comes from, how it ended, facts to print beside the numbers.
        window: the time that the next five speak of.
        partition, kinds, phases, exposed: that time in parts, by kind, by phase and kind, in
            exposed segments.
        tail, tails: the tails of the selected steps whose events were kept: their distribution, and
            each.
        buckets: gradient buckets of these steps.
        contention: whether compute runs slower while communication runs.
        units: modules as communication units (FSDP2); None where no module owns a collective.
        layers: what layers exchange (tensor, pipeline, context, expert parallelism).
        configured: options of the framework that decide overlap, and what came of them; None where none were told.
        steps: statistics over all selected steps.
        rows: SUMMARY rows of all selected steps.
        shadow: what recording cost.
        fused: kernels of the window that compute and communicate at once.
        messages: collectives of the window by group and size.
        call_sites: collectives of the window by what launched them.
        calls: calls of the communication library by kind, with their exact sizes.
        rates: kernels against calls, and rates where they close; none for a log.
        in_flight: collectives that had not finished when the input was read.
        table: what this rank contributes to a comparison with others; None of one that is read alone.
        phase_rule, step_rule: what decided the phases and the steps.
        compute_rule: what the compute lane is made of.
        steps_in_window: how many steps the window is made of; None where none are known.
        checks: every closure check that was made.
        unknown: what cannot be told, and why.
        skipped, counters, notes: what the source left out, counted and remarked.

    """

    origin: Origin
    state: str
    about: Mapping[str, str]
    window: Window
    partition: Partition
    kinds: Split
    phases: Split
    exposed: Exposed
    tail: TailDistribution
    tails: tuple[StepTail, ...]
    buckets: BucketTable
    contention: Contention
    units: Units | None
    layers: LayerTable
    configured: Configured | None
    steps: StepStatistics
    rows: NDArray[np.void]
    shadow: ShadowCost
    fused: Fused
    messages: Messages
    call_sites: CallSites
    calls: Calls
    rates: tuple[Rate, ...]
    in_flight: tuple[InFlight, ...]
    table: RankTable | None
    phase_rule: str
    step_rule: str
    compute_rule: str
    steps_in_window: int | None
    checks: tuple[Check, ...]
    unknown: tuple[Unknown, ...]
    skipped: tuple[Skipped, ...]
    counters: Mapping[str, int]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `timelines` in the JSON of a report; what is not known is null."""
        origin = self.origin
        return {
            "source": origin.source,
            "path": origin.path,
            "rank": origin.rank,
            "world": origin.world,
            "device": origin.device or None,
            "process": origin.process or None,
            "host": origin.host or None,
            "state": self.state,
            "about": dict(self.about),
            "window": self.window.to_dict(),
            "partition": self.partition.to_dict(),
            "compute_rule": self.compute_rule,
            "step_rule": self.step_rule,
            "fused": self.fused.to_dict(),
            "kinds": self.kinds.to_dict()["cells"],
            "phases": self.phases.to_dict(),
            "exposed": self.exposed.to_dict(),
            "tail": self.tail.to_dict(),
            "buckets": self.buckets.to_dict(),
            "contention": self.contention.to_dict(),
            "units": self.units.to_dict() if self.units else None,
            "layers": self.layers.to_dict(),
            "configured": self.configured.to_dict() if self.configured else None,
            "messages": [row.to_dict() for row in self.messages.sizes],
            "groups": [row.to_dict() for row in self.messages.groups],
            "call_sites": [site.to_dict() for site in self.call_sites.sites],
            "calls": self.calls.to_dict(),
            "rates": [rate.to_dict() for rate in self.rates],
            "step_statistics": self.steps.to_dict(),
            "steps": list(self.step_dicts()),
            "shadow": self.shadow.to_dict(),
            "in_flight": [one.to_dict() for one in self.in_flight],
            "closure": [check.to_dict() for check in self.checks],
            "not_known": [{"what": one.what, "because": one.because} for one in self.unknown],
            "skipped": [
                {"what": one.what, "count": one.count, "because": one.because}
                for one in self.skipped
            ],
            "counters": dict(self.counters),
            "notes": list(self.notes),
        }

    def step_dicts(self) -> Iterator[dict[str, Any]]:
        """Yield each selected step as JSON-ready values, with the pieces of its tail where they are known."""
        pieces = {tail.step: [piece.to_dict() for piece in tail.pieces] for tail in self.tails}
        for row in self.rows:
            values: dict[str, Any] = {
                name: None if name not in _NEVER_UNKNOWN and value == NOT_KNOWN else value
                for name, value in zip(SUMMARY.names or (), row.item(), strict=True)
            }
            values["flags"] = flag_words(int(row["flags"]))
            values["tail_pieces"] = pieces.get(values["step"])
            yield values


def flag_words(flags: int) -> list[str]:
    """Return the names of the StepFlags that are set, in lower case."""
    return [(flag.name or "").lower() for flag in StepFlag if flag & flags]


def analyse(
    recording: Recording,
    selection: Selection | None = None,
    rules: Rules | None = None,
    *,
    alone: bool = False,
) -> Analysis:
    """Return the analysis of what is selected; without a selection, of everything.

    Args:
        recording: what a source read.
        selection: which steps, moments or phase.
        rules: how steps and phases are told where the input does not mark them.
        alone: it will not be compared with other ranks.

    Raises:
        ConfigurationError: what is selected is not in the recording; one sentence says what is.

    """
    selection, rules = selection or Selection(), rules or Rules()
    recording, step_rule = ruled(recording, rules)
    choice = choose(recording, selection)
    # The window needs all collectives (one may reach into it from a step that is not selected);
    # what is told by step needs those of the selected steps.
    tl, chosen = recording.timeline, choice.timeline
    rows = choice.summaries if len(recording.summaries) else summarize(chosen)
    lanes = lanes_of(tl, choice.window)
    parts = partition(tl, choice.window, lanes)
    by_kind, by_phase = kinds(tl, choice.window, lanes), phases(tl, choice.window, lanes)
    segments = exposed(tl, choice.window, lanes)
    tails = step_tails(chosen)
    tail = _tail_of(tails, chosen)
    buckets = bucket_table(chosen)
    slowed = contention(tl, lanes)
    by_module = units(tl, chosen, lanes)
    kept = chosen.steps[chosen.steps["flags"] & StepFlag.SHADOW == 0]
    statistics = step_statistics(rows, kept["step"].tolist())
    shadow = shadow_cost(rows)
    launched = _launched(tl, lanes)
    sent = messages(launched, tl.groups)
    exchanged = layer_table(launched, lanes, tl, _in_window(chosen))
    options = configured(recording.about, tl, launched, lanes, rows["flags"], recording.notes)
    sites = call_sites(launched, lanes, tl.names)
    payloads = payloads_of(tl, lanes, whole=selection.whole)
    calls = calls_of(payloads, launched)
    live = recording.state != "profile"
    steps = len(choice.steps) or len(kept) or None
    calls_made = payloads if len(payloads) else calls_of_records(tl, lanes)
    # A part of each step has no whole number of anything.
    whole_steps = steps if selection.phase is None else None
    unknown = (*tl.unknown, *parts.not_known(), *tail.unknown, *buckets.unknown)
    unknown += (*slowed.not_known(), *(by_module.unknown if by_module else ()))
    unknown += options.unknown if options else ()
    if not live and parts.observed and not len(calls_made):
        unknown += (Unknown("rates", "the input holds no sizes of messages"),)
    return Analysis(
        origin=tl.origin,
        state=recording.state,
        about=recording.about,
        window=choice.window,
        partition=parts,
        kinds=by_kind,
        phases=by_phase,
        exposed=segments,
        tail=tail,
        tails=tails,
        buckets=buckets,
        contention=slowed,
        units=by_module,
        layers=exchanged,
        configured=options,
        steps=statistics,
        rows=rows,
        shadow=shadow,
        fused=fused(tl, lanes),
        messages=sent,
        call_sites=sites,
        calls=calls,
        rates=()
        if live
        else rates(
            calls_made,
            lanes,
            tl.groups,
            whole_steps,
            tl.origin.world,
            moved=not len(payloads),
        ),
        in_flight=in_flight(
            recording.in_flight,
            tl.names,
            tl.groups,
            recording.read_ns or newest_ns(recording),
        ),
        table=None if alone else rank_table(recording, choice, lanes=lanes, tails=tails),
        phase_rule=tl.phase_rule,
        step_rule=step_rule,
        compute_rule=tl.compute_rule,
        steps_in_window=steps,
        checks=(
            *parts.checks(),
            *by_kind.checks(),
            *by_phase.checks(),
            *segments.checks(),
            *tail.checks(),
            *_tail_checks(tails),
            *statistics.checks(),
            *sent.checks(),
            *sites.checks(),
            *calls.checks(),
            *slowed.checks(),
            *(by_module.checks() if by_module else ()),
            *exchanged.checks(),
            *_live_checks(choice, rows, parts),
        ),
        # A profile has no shadow steps; nobody asks what its recording cost.
        unknown=tuple(dict.fromkeys((*unknown, *(shadow.unknown if live else ())))),
        skipped=tl.skipped,
        counters=recording.counters,
        notes=(*recording.notes, *choice.notes),
    )


def _tail_of(tails: tuple[StepTail, ...], tl: Timeline) -> TailDistribution:
    """Return how the tails spread; where no launch has a phase, nobody knows what reduced gradients."""
    tail = distribution(tails)
    blind = len(tl.communication) > 0 and not tl.communication["phase"].any()
    if tail.tail is not None or not tail.steps or not blind:
        return tail
    because = (
        "the phases of launches are not known, so neither is which collectives reduce gradients"
    )
    return replace(tail, unknown=(Unknown("the tails of the steps", because),))


def ruled(recording: Recording, rules: Rules) -> tuple[Recording, str]:
    """Return the recording with steps and phases by the rules, and the rule of the steps."""
    tl, step_rule = recording.timeline, RECORDED
    if not from_marks(tl):
        tl, step_rule = with_steps(tl, rules.anchors)
    if not (from_marks(tl) and rules.phases == "auto"):
        tl = with_phases(tl, rules.phases, rules.anchors)
    return (recording if tl is recording.timeline else replace(recording, timeline=tl)), step_rule


def newest_ns(recording: Recording) -> int:
    """Return the newest time seen anywhere in the recording, ns; 0 when there is none."""
    tl = recording.timeline
    times = [
        tl.compute.end,
        tl.copies.end,
        tl.waits.end,
        tl.steps["end"],
        recording.summaries["end_ns"],
    ]
    for records in (tl.communication, recording.in_flight):
        times += [records[field] for field in ("ready", "launch", "start", "finish")]
    return max((int(column.max()) for column in times if len(column)), default=0)


def _launched(tl: Timeline, lanes: Lanes) -> NDArray[np.void]:
    """Return the collectives of the window, each once, with and without a finish."""
    seen = tl.communication[np.unique(lanes.index)]
    return np.concatenate((seen, lanes.unfinished, lanes.unobservable))


def _in_window(chosen: Timeline) -> NDArray[np.uint32]:
    """Return the numbers of the selected steps that are in statistics; of all selected where none is."""
    counted = chosen.steps[chosen.steps["flags"] & OUT_OF_STATISTICS == 0]
    return np.asarray((counted if len(counted) else chosen.steps)["step"])


def _tail_checks(tails: tuple[StepTail, ...]) -> tuple[Check, ...]:
    known = [tail for tail in tails if tail.tail_ns is not None]
    name = "steps whose tail pieces add up = steps with a known tail"
    return (Check(name, sum(tail.check().ok for tail in known), len(known), "steps"),)


def _live_checks(choice: Choice, rows: NDArray[np.void], parts: Partition) -> tuple[Check, ...]:
    """Compare what was printed live with what the events say now, where both speak of the same steps."""
    mine = rows[np.isin(rows["step"], choice.steps)]
    known = len(mine) == len(choice.steps) > 0 and bool(
        (mine["communication_ns"] != NOT_KNOWN).all()
    )
    if not known or choice.window.boundary != "clip":
        return ()
    pairs = (
        ("communication", "communication_ns", parts.communication_ns),
        ("hidden", "overlap_ns", parts.overlap_ns),
        ("compute", "compute_ns", parts.compute_ns),
    )
    return tuple(
        Check(f"{word} in the summaries = {word} in the events", int(mine[field].sum()), now)
        for word, field, now in pairs
    )
