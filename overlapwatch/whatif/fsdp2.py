"""FSDP2 with other prefetch depths, and with parameters kept or given back after forward, from one recorded run.

In: recordings of one run, with the uses of each module's parameters. Out: an `FsdpForecast`: for each setting the tail,
the exposed communication, the step time, and the peak of the unsharded parameters' memory that the model expects.

The model, for each sampled step:

    pieces of work, as recorded, of all ranks that share a clock (`fsdp2_recorded`)
      → every all-gather where the setting has it (`fsdp2_program`)
      → lanes of work and one link, at the fitted cost of a collective (`fsdp2_engines`, `fsdp2_link`, `cost`)
      → a timeline (`fsdp2_simulated`), whose tail, exposed time and memory the accounting tells

First it is asked about the setting that was recorded. How far it is off there is printed beside everything else, and
settings whose steps differ by less are not told apart.

What it does not know: that compute may run slower beside communication or when memory is short; activations, gradients
and buffers; what a longer or shorter step does to the next one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from overlapwatch.accounting.closure import Check
from overlapwatch.accounting.spread import median
from overlapwatch.errors import ConfigurationError, InputError
from overlapwatch.timeline.model import I64, Recording, Timeline, Unknown
from overlapwatch.vocabulary import CollectiveKind
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.fsdp2_forecast import FsdpForecast, Modelled, SettingForecast
from overlapwatch.whatif.fsdp2_items import GATHER, Mark, MarkKind, Piece, RankRecord
from overlapwatch.whatif.fsdp2_model import Model, recorded
from overlapwatch.whatif.fsdp2_program import AS_RECORDED, Chain, Setting, chain_of
from overlapwatch.whatif.fsdp2_recorded import outermost_names, read_rank, sharing_ranks

DEFAULT_DEPTHS = (0, 1, 2, 3)
DEFAULT_RESHARD = (True, False)
MOST_STEPS = 10
"""More steps than these are sampled evenly; fewer of many ranks and modules, so that an answer takes seconds."""
MOST_WORK = 2_000
FEWEST_STEPS = 3


def fsdp2_forecast(
    recordings: Sequence[Recording],
    forward_prefetch: Sequence[int] | None = None,
    backward_prefetch: Sequence[int] | None = None,
    reshard_after_forward: Sequence[bool] | None = None,
    cost: Cost | None = None,
) -> FsdpForecast:
    """Say what each combination of settings would do to the first of `recordings`.

    Args:
        recordings: of one run, one a rank; those on the first one's host are simulated with it.
        forward_prefetch: depths, in modules ahead; None: 0 to 3, as far as the model has as many.
        backward_prefetch: the same.
        reshard_after_forward: None: both.
        cost: of a collective, all-gathers and reductions alike; fitted when None.

    Raises:
        ConfigurationError: a setting makes no sense, or there is none.
        InputError: the recordings do not tell what the model needs; one sentence says what and what to do.
    """
    told = recordings[0].timeline
    ranks = _ranks(recordings)
    chain = chain_of(ranks[0])
    settings = _settings(chain, forward_prefetch, backward_prefetch, reshard_after_forward)
    numbers = _common_steps(ranks)
    model = Model(ranks, numbers, chain, cost)
    replayed = model.ask(AS_RECORDED)
    seen = recorded(told, numbers)
    shape = model.order_of(numbers[-1], AS_RECORDED).shape
    rows = _forecasts(model, settings, shape)
    return FsdpForecast(
        rank=told.origin.rank,
        ranks=len(ranks),
        steps=len(numbers),
        modules=len(ranks[0].modules),
        device=ranks[0].device,
        blocking=bool(ranks[0].blocking),
        recorded=seen,
        modelled=replayed,
        step_error_ns=_off(replayed.steps_ns, seen.steps_ns),
        exposed_error_ns=_off(replayed.exposures_ns, seen.exposures_ns),
        costs=model.costs,
        at_once=model.carried.link.width,
        apart=model.carried.apart,
        settings=rows,
        closure=(*_checks(model), *replayed.closure),
        unknown=tuple(_unknown(ranks, model, replayed, len(numbers))),
    )


# -- what is asked -----------------------------------------------------------------------------------------------------


def _settings(
    chain: Chain,
    forward: Sequence[int] | None,
    backward: Sequence[int] | None,
    reshard: Sequence[bool] | None,
) -> list[Setting]:
    depths: list[list[int]] = []
    for name, asked in (("forward", forward), ("backward", backward)):
        if asked is None:
            depths.append([depth for depth in DEFAULT_DEPTHS if depth <= max(chain.deepest, 0)])
            continue
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in asked)
        if not asked or not whole or min(asked) < 0:
            raise ConfigurationError(
                f"{name} prefetch depths are whole numbers of modules, 0 for PyTorch's default, and one is needed"
            )
        if max(asked) > max(chain.deepest, 0):
            raise ConfigurationError(
                f"a {name} prefetch of {max(asked)}: no module of this run has more than {max(chain.deepest, 0)} "
                "to gather ahead"
            )
        depths.append(list(dict.fromkeys(asked)))
    kept = list(dict.fromkeys(DEFAULT_RESHARD if reshard is None else reshard))
    if not kept or not all(isinstance(one, bool) for one in kept):
        raise ConfigurationError("reshard_after_forward is True or False, and one is needed")
    forward_depths, backward_depths = depths
    return [Setting(f, b, r) for r, f, b in product(kept, forward_depths, backward_depths)]


def _ranks(recordings: Sequence[Recording]) -> list[RankRecord]:
    """Return the told rank and those that share its clock; raise where it does not tell enough."""
    told = recordings[0].timeline
    where = told.origin.path or "the input"
    if not len(told.uses) or not len(told.held):
        raise InputError(
            f"{where}: no FSDP2 module whose parameters were gathered and used is in it: record a few steps of a "
            "job with fully_shard() by overlapwatch.watch(model, log_dir=...)"
        )
    if len(outermost_names(told)) > 1:
        raise InputError(
            f"{where}: {len(outermost_names(told))} models were run in it, and which one prefetches for which is "
            "not known: record one model by itself"
        )
    first = read_rank(told)
    if not first.steps:
        raise InputError(
            f"{where}: no step in statistics has all its uses of parameters and the finish of all its collectives: "
            "record a few more steps"
        )
    if any(one["bytes"] < first.size.get(told.names[one["owner"]].text, 0) for one in _owned(told)):
        raise InputError(
            f"{where}: modules keep a part of their parameters between forward and backward (reshard_after_forward "
            "is a number), which is not simulated: record a run with True or False"
        )
    items = (item for step in first.steps.values() for item in step.items)
    if not any(isinstance(item, Piece) and item.computing for item in items):
        raise InputError(
            f"{where}: no compute was recorded between the uses of parameters, so nothing could be hidden behind it: "
            "record the steps with overlapwatch.watch(model, log_dir=...)"
        )
    # Of HSDP's replicas only its own: the others gather among themselves.
    sharing = sharing_ranks(told)
    peers = (
        one.timeline
        for one in recordings[1:]
        if one.timeline.origin.host == told.origin.host
        and (not sharing or one.timeline.origin.rank in sharing)
    )
    return [first, *map(read_rank, peers)]


def _owned(tl: Timeline) -> Iterable[np.void]:
    return [one for one in tl.held if int(one["owner"]) in tl.names]


def _common_steps(ranks: Sequence[RankRecord]) -> list[int]:
    """Return the sampled steps: those that all ranks have, with the collectives that most of them have."""
    common = set.intersection(*(set(one.steps) for one in ranks))
    if not common:
        raise InputError("no whole step in statistics is in the logs of all ranks of this host")
    seen = {
        number: {tuple(sorted(one.steps[number].collectives.names)) for one in ranks}
        for number in sorted(common)
    }
    agreed = [next(iter(names)) for names in seen.values() if len(names) == 1]
    if not agreed:
        raise InputError("the ranks of this host did not issue the same collectives in a step")
    usual, _ = Counter(reversed(agreed)).most_common(1)[0]  # of equally many the latest
    alike = [number for number, names in seen.items() if names == {usual}]
    affordable = MOST_WORK // (len(ranks) * len(ranks[0].modules))
    most = max(FEWEST_STEPS, min(MOST_STEPS, affordable))
    places = np.unique(np.linspace(0, len(alike) - 1, most).astype(int))
    return [alike[place] for place in places]


def _forecasts(
    model: Model, settings: Sequence[Setting], shape_recorded: tuple[object, ...]
) -> tuple[SettingForecast, ...]:
    """Simulate each order that occurs once, and say which settings have it."""
    known: dict[tuple[object, ...], Modelled] = {}
    rows = []
    for setting in settings:
        last = model.order_of(model.numbers[-1], setting)
        shape = last.shape
        if shape not in known:
            known[shape] = model.ask(setting)
        rows.append(
            SettingForecast.of(
                setting,
                known[shape],
                kind=list(known).index(shape),
                recorded=shape == shape_recorded,
                gathers=sum(job.startswith(f"{int(GATHER)} ") for job in last.jobs),
            )
        )
    return tuple(rows)


def _off(modelled: I64, recorded: I64) -> int:
    return median(np.abs(modelled - recorded)) or 0


def _checks(model: Model) -> tuple[Check, ...]:
    told = model.ranks[0]
    sent = sum(len(model.order_of(number, AS_RECORDED).jobs) for number in model.numbers)
    owned = sum(len(told.steps[number].collectives.kind) for number in model.numbers)
    return (
        *(told.steps[number].check() for number in model.numbers),
        Check("collectives in the order of hooks = recorded", sent, owned, "collectives"),
    )


def _unknown(
    ranks: Sequence[RankRecord],
    model: Model,
    replayed: Modelled,
    steps: int,
) -> Iterable[Unknown]:
    if len(ranks) < ranks[0].group_ranks:
        yield Unknown(
            "what the other ranks did",
            f"the logs of {len(ranks)} of {ranks[0].group_ranks} ranks that share parameters were read, or share a "
            "clock: waiting for the others counts as cost of the collective",
        )
    if CollectiveKind.ALL_REDUCE in model.costs.of:
        yield Unknown(
            "when the other replicas were ready",
            "only ranks that share parameters are simulated: waiting for replicas counts as cost of the all-reduce",
        )
    for cost in model.costs.of.values():
        if cost.count and cost.latency_ns is None:
            yield Unknown(
                "the latency of a collective",
                "it cannot be told from the time for bytes: all counts as time for bytes",
            )
            break
    if ranks[0].others:
        yield Unknown(
            "what collectives of no module would do",
            f"{ranks[0].others} in the steps that were read ran beside others, and are left out",
        )
    by_hand = sum(
        isinstance(item, Mark) and item.kind is MarkKind.BY_HAND
        for number in model.numbers
        for item in ranks[0].steps[number].items
    )
    if by_hand:
        yield Unknown(
            "what other places of all-gathers by hand would do",
            f"{by_hand} were issued by unshard(), or by a module with several groups: they stay where they were",
        )
    if not model.told_apart and not ranks[0].blocking:
        counted = "one at a time" if model.carried.link.width == 1 else "sharing its rate"
        yield Unknown(
            "how collectives that are under way together share the link",
            f"they hardly ever were in this recording: counted as {counted}",
        )
    if ranks[0].device:
        yield Unknown(
            "how a device's forecast compares with a measurement",
            "it was checked against simulated streams only",
        )
    if replayed.peak_bytes is None:
        yield Unknown("memory held by unsharded parameters", "when they were held was not recorded")
    if steps < 5:
        read = "1 step was" if steps == 1 else f"{steps} steps were"
        yield Unknown("how much steps differ", f"{read} read")
