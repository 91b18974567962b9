"""What-if of FSDP2 in text: time and memory of each setting, side by side.

In: an `FsdpForecast`. Out: Rich renderables. Settings that issue the same all-gathers in the same order share a row. It
computes nothing but shares.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from overlapwatch.reports.format import NONE, counted, duration, scale, size
from overlapwatch.reports.layout import facts, gap, heading, note, sentence, table
from overlapwatch.reports.whatif import cost_text
from overlapwatch.vocabulary import CollectiveKind
from overlapwatch.whatif.fsdp2_forecast import FsdpForecast, Modelled, SettingForecast

_KNOBS = ("forward_prefetch", "backward_prefetch", "reshard_after_forward")
_SEPARATOR = " · "


def fsdp2(result: FsdpForecast) -> Iterator[RenderableType]:
    """Yield what the model expects of each setting."""
    who = f"rank {result.rank}" if result.rank is not None else "one rank"
    yield heading(f"what other prefetch depths would do: {who}")
    yield facts(_facts(result))
    yield gap()
    yield _table(result)
    yield gap()
    yield sentence(_verdict(result))
    if result.worth_having:
        yield sentence(_worth(result))
    if result.blocking:
        yield note(
            "All-gathers were not asynchronous: whoever issues one stands still until it is over, so that no depth "
            "hides anything; on CPUs model._set_unshard_async_op(True) changes that."
        )
    yield note(
        "Memory is that of unsharded parameters only. 0 ahead is PyTorch's default: none in forward, one in backward."
    )
    for one in result.unknown:
        yield note(f"not known: {one.what}: {one.because}")


def _facts(result: FsdpForecast) -> Iterator[tuple[str, str]]:
    yield "recorded", _numbers(result.recorded) + _recorded_as(result)
    step_off, exposed_off = result.step_error_ns, result.exposed_error_ns
    off = f"off by {duration(step_off)} in the step, {duration(exposed_off)} in exposed (medians)"
    yield "the model", f"says {_numbers(result.modelled)}; {off}"
    ranks = f"{counted(result.ranks, 'rank')} of this host"
    modules = counted(result.modules, "module")
    yield "from", f"{counted(result.steps, 'step')} of {ranks}, {modules}"
    for kind, cost in result.costs.of.items():
        yield f"{CollectiveKind(kind).title} costs", cost_text(cost)
    if result.at_once > 1:
        yield "the link", f"up to {result.at_once} collectives at once share it"
    elif result.apart:
        yield "the link", "all-gathers and reductions each one at a time, beside each other"
    else:
        yield "the link", "one collective at a time, all-gathers and reductions in one order"
    if result.ceiling is not None:
        percent = 100 * result.ceiling
        yield (
            "ceiling",
            f"+{percent:.1f} % throughput if nothing were exposed: a bound, not a forecast",
        )


def _numbers(one: Modelled) -> str:
    return (
        f"step {duration(one.step_ns)}, exposed {duration(one.exposed_ns)}, tail {duration(one.tail_ns)}, "
        f"at most {size(one.peak_bytes)} held"
    )


def _recorded_as(result: FsdpForecast) -> str:
    if any(one.recorded for one in result.settings):
        return ""
    return "; none of the settings below issues its all-gathers in this order"


def _table(result: FsdpForecast) -> RenderableType:
    kinds = result.kinds
    times = [v for several in kinds for v in (several[0].exposed_ns, several[0].tail_ns)]
    ms, step = scale(times), scale([several[0].step_ns for several in kinds])
    best, worth = result.best, result.worth_having
    rows = []
    for several in kinds:
        one = several[0]
        marks = ("◂" if one in best else "") + ("◆" if one in worth else "")
        rows.append(
            (
                _SEPARATOR.join(_said(several, name) for name in _KNOBS),
                step(one.step_ns),
                f"{100 * (one.step_ns / result.recorded.step_ns - 1):+.1f} %",
                ms(one.exposed_ns),
                ms(one.tail_ns),
                size(one.peak_bytes) if one.peak_bytes is not None else NONE,
                ("recorded " if any(same.recorded for same in several) else "") + marks,
            )
        )
    setting = _SEPARATOR.join(("forward", "backward", "reshard"))
    columns = (setting, "step, ms", "change", "exposed, ms", "tail, ms", "held", "")
    return table(columns, rows, words=(0, 6))


def _said(several: Sequence[SettingForecast], name: str) -> str:
    """Write the values of one setting among forecasts that are the same: `0–3`, `0, 1`, `yes`."""
    values = list(dict.fromkeys(getattr(one, name) for one in several))
    if name == "reshard_after_forward":
        return " or ".join("yes" if value else "no" for value in values)
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(map(str, values))


def _one(several: Sequence[SettingForecast]) -> str:
    forward, backward, reshard = (_said(several, name) for name in _KNOBS)
    return f"{forward} ahead in forward, {backward} in backward, reshard {reshard}"


def _verdict(result: FsdpForecast) -> str:
    best, kinds = result.best, result.kinds
    error = duration(result.step_error_ns)
    if len(kinds) == 1:
        return "These settings issue the same all-gathers in the same order."
    if len(best) == len(result.settings):
        return f"The model cannot tell these steps apart: they differ by less than its error of {error}."
    shortest = min(kinds, key=lambda several: several[0].step_ns)
    text = f"Shortest step expected with {_one(shortest)} (◂)."
    others = [several for several in kinds if several is not shortest and several[0] in best]
    if others:
        known = [several for several in others if several[0].peak_bytes is not None]
        least = min(known, key=lambda several: several[0].peak_bytes or 0, default=others[0])
        text += (
            f" {counted(len(others), 'other row')} within the model's error of {error} cannot be told from it (◂); "
            f"of these {_one(least)} holds {size(least[0].peak_bytes)}."
        )
    return f"{text} A forecast: measure it before you keep it."


def _worth(result: FsdpForecast) -> str:
    names = [_one(several) for several in result.kinds if several[0] in result.worth_having]
    return f"No other setting is as good in both time and memory (◆) as: {'; '.join(names)}."
