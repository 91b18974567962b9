"""How a text report opens: what is wrong or still running, the ranks side by side, and one rank's
origin.

In: Analyses. Out: renderables for `text`. It does not compute: each number is one that the
accounting gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from rich.console import RenderableType

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.accounting.buckets import BucketRow
from overlapwatch.accounting.configured import PREFIX
from overlapwatch.accounting.messages import InFlight
from overlapwatch.reports.format import counted, duration, percent, scale, size
from overlapwatch.reports.layout import facts, heading, sentence, table
from overlapwatch.settings import Settings

ALERTS = 8
"""Ranks whose state is told in full; a job of 500 ranks that hangs says the rest in one line."""

_VERSIONS = ("overlapwatch", "python", "torch", "nccl")
_SETTING = "setting "


def who(analysis: Analysis) -> str:
    """Return `rank 3`, or what else the input calls it; a device of a profile is named in full."""
    origin = analysis.origin
    if analysis.state == "profile":
        rank = f"rank {origin.rank}" if origin.rank is not None else origin.process
        return ", ".join(filter(None, (rank, origin.device))) or origin.path
    if origin.rank is not None:
        return f"rank {origin.rank}"
    return origin.process or origin.device or origin.path


def labels(analyses: Sequence[Analysis]) -> list[str]:
    """Return `who` of each, with the name of its file where several are called the same."""
    names = [who(one) for one in analyses]
    return [
        name if names.count(name) == 1 else f"{name}, {PurePath(one.origin.path).name}"
        for name, one in zip(names, analyses, strict=True)
    ]


def alerts(analyses: Sequence[Analysis]) -> Iterator[RenderableType]:
    """Yield what must be said before any number: jobs that run or were killed, hung collectives."""
    telling = [one for one in analyses if one.in_flight or one.state not in {"closed", "profile"}]
    for analysis in telling[:ALERTS]:
        yield sentence(f"{who(analysis)} {_state(analysis)}", "bold")
    if len(telling) > ALERTS:
        yield sentence(f"and {counted(len(telling) - ALERTS, 'rank')} more: see the table", "bold")
    bad = [who(one) for one in analyses if any(not check.ok for check in one.checks)]
    if bad:
        yield sentence(f"the numbers of {', '.join(bad)} do not add up: see the end", "bold red")


def _state(analysis: Analysis) -> str:
    state = analysis.state
    if state in {"running", "closed"} or state.startswith("unknown"):
        told = {"running": "is running", "closed": "has ended"}.get(state, f"is in state {state}")
    else:
        told = "was killed" if state == "killed" else f"is {state}"
    flying = analysis.in_flight
    if not flying:
        last = analysis.steps.last_step
        where = "no step had ended" if last is None else f"the last step that ended is {last}"
        return f"{told}; {where}; no collective is in flight"
    newest = flying[-1]
    text = f"{told}, in step {newest.step}; last collective launched and not finished: "
    text += in_flight_words(newest, analysis)
    if len(flying) > 1:
        oldest = flying[0]
        text += f"; {len(flying) - 1} more in flight, the oldest is {_kind_and_name(oldest)}"
        text += f", sequence {oldest.sequence}" if oldest.sequence else ""
    return text


def in_flight_words(one: InFlight, analysis: Analysis) -> str:
    """Return a collective in flight with all that is known of it."""
    parts = [_kind_and_name(one)]
    tables = (*analysis.buckets.rows, *analysis.buckets.unbucketed)
    bucket = next((row for row in tables if row.name == one.name), None)
    if bucket and bucket.parameters:
        parts[0] += f" ({parameter_span(bucket)})"
    parts.append(size(one.bytes) if one.bytes is not None else "size not known")
    if one.group:
        parts.append(f"group {one.group}")
    if one.sequence:
        parts.append(f"sequence {one.sequence}")
    if one.age_ns is not None:
        until = "ago" if analysis.state == "running" else "before the last event"
        parts.append(f"launched {duration(one.age_ns)} {until}")
    return ", ".join(parts)


def _kind_and_name(one: InFlight) -> str:
    """Return `AllReduce bucket 2`; a name that is made of the kind stands alone."""
    kind = one.kind.title
    return one.name if one.name.startswith(kind) else f"{kind} {one.name}"


def parameter_span(row: BucketRow) -> str:
    """Return `12 parameters, head.weight … embedding.weight`."""
    text = counted(row.parameters, "parameter")
    if row.first_parameter and row.first_parameter != row.last_parameter:
        return f"{text}, {row.first_parameter} … {row.last_parameter}"
    return f"{text}, {row.first_parameter}" if row.first_parameter else text


def ranks(analyses: Sequence[Analysis]) -> Iterator[RenderableType]:
    """Yield the ranks side by side: medians over the steps in statistics."""
    yield heading(f"{len(analyses)} ranks")
    columns = ("rank", "steps", "step p50", "comm p50", "hidden", "exposed", "tail p50", "tail p99")
    times = [_medians(one) for one in analyses]
    ms = scale(ns for row in times for ns in row)
    rows = []
    for one, (step_ns, comm_ns, tail_ns, worst_ns) in zip(analyses, times, strict=True):
        hidden, exposed = one.steps.overlap, one.steps.exposed_fraction
        shares = (percent(ratio.numerator_ns, ratio.denominator_ns) for ratio in (hidden, exposed))
        name, count = who(one).removeprefix("rank "), f"{one.steps.counted:,}"
        state = one.state.partition(":")[0]
        rows.append(
            (name, count, ms(step_ns), ms(comm_ns), *shares, ms(tail_ns), ms(worst_ns), state)
        )
    yield table((*columns, "state"), rows, words=(0, 8))
    yield sentence(
        "Times in ms over the steps in statistics. Hidden: share of communication; "
        "exposed: share of the steps",
        "dim",
    )


def _medians(analysis: Analysis) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the step, communication and tail p50, and the tail p99."""
    step, sent, tail = analysis.steps.duration, analysis.steps.communication, analysis.steps.tail
    return (
        step.p50_ns if step else None,
        sent.p50_ns if sent else None,
        tail.p50_ns if tail else None,
        tail.p99_ns if tail else None,
    )


def origin_facts(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield where the numbers come from, and the variables that decide overlap."""
    origin, about = analysis.origin, analysis.about
    place = str(origin.rank) if origin.rank is not None else "not known"
    place += f" of {origin.world}" if origin.world is not None else ""
    where = [text for text in (origin.host, origin.process, origin.device) if text]
    pairs = [
        ("input", f"{origin.path} ({origin.source})"),
        ("rank", ", ".join([place, *where])),
    ]
    if analysis.state != "profile":
        pairs.append(("state", analysis.state))
    versions = [f"{name} {about[name]}" for name in _VERSIONS if name in about]
    if versions:
        pairs.append(("versions", ", ".join(versions)))
    variables = {name: value for name, value in about.items() if name.isupper()}
    settings = _changed_settings(about)
    if settings:
        pairs.append(("settings", ", ".join(settings)))
    if variables:
        pairs.append(
            ("environment", " ".join(f"{name}={value}" for name, value in variables.items()))
        )
    elif about and analysis.state != "profile":  # a profile's environment is not read
        pairs.append(("environment", "none of the variables that decide overlap was set"))
    told = {*_VERSIONS, *variables}
    pairs += [
        (name, value)
        for name, value in about.items()
        if name not in told and not name.startswith((_SETTING, PREFIX)) and value
    ]
    yield facts(pairs)


def _changed_settings(about: Mapping[str, str]) -> list[str]:
    """Return the settings that differ from their defaults, and those this version does not know."""
    defaults = Settings()
    changed = []
    for name, value in about.items():
        setting = name.removeprefix(_SETTING)
        if setting == "log_dir":  # the input's own path says so
            continue
        if setting != name and value != str(getattr(defaults, setting, None)):
            changed.append(f"{setting}={value}")
    return changed
