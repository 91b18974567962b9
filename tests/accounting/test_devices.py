from dataclasses import replace

from overlapwatch.accounting.analyse import analyse
from overlapwatch.accounting.devices import side_by_side
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import CollectiveKind
from tests.support.scenarios import MS, collective, profile, step_rows


def device(hidden, sends=2, steps=None, kind=CollectiveKind.ALL_REDUCE):
    """`sends` collectives of 10 ms, `hidden` ms of each under compute."""
    compute = [(20 * i + 10 - hidden, 20 * i + 10 + 5) for i in range(sends)]
    spans = [collective(20 * i, 20 * i + 10, kind=kind) for i in range(sends)]
    tl = profile(compute, spans)
    if steps:
        tl = replace(tl, steps=step_rows([(i, 20 * i, 20 * i + 20) for i in range(steps)]))
    return analyse(Recording(tl))


def extents(*analyses):
    return {one.name: one for one in side_by_side(analyses).extents}


def test_the_table_of_the_module():
    found = extents(device(2), device(6), device(3))["hidden"]
    assert (found.least, found.median, found.most) == (0.2, 0.3, 0.6)
    assert (found.least_at, found.most_at, found.known) == (0, 1, 3)


def test_times_are_whole_ns_that_occur():
    found = extents(device(2), device(6), device(3), device(4))["exposed"]
    assert (found.least, found.median, found.most) == (8 * MS, 12 * MS, 16 * MS)
    assert found.to_dict()["least_timeline"] == 1


def test_a_device_without_communication_is_no_device_with_nothing_hidden():
    """One card with no recognised kernel must not read as 0 % hidden."""
    silent = analyse(Recording(profile([(0, 5)])))
    told = side_by_side([silent, device(5)])
    hidden = next(one for one in told.extents if one.name == "hidden")
    assert (hidden.known, hidden.least, hidden.least_at) == (1, 0.5, 1)
    assert (told.timelines, told.silent) == (2, 1)
    names = {one.name for one in side_by_side([silent]).extents}
    assert names == {"window", "compute"}


def test_kinds_that_are_equally_many_on_each():
    told = side_by_side([device(1, 6, 3), device(4, 6, 3)])
    (one,) = told.kinds
    assert (one.events, one.ranks, one.steps, one.each) == (12, 2, 3, 2)


def test_kinds_that_are_not():
    (uneven,) = side_by_side([device(1, 6, 3), device(4, 4, 3)]).kinds
    assert (uneven.events, uneven.each, uneven.equal) == (10, None, False)
    (broken,) = side_by_side([device(1, 5, 3), device(4, 5, 3)]).kinds
    assert (broken.events, broken.each, broken.equal) == (10, None, True)
    (stepless,) = side_by_side([device(1, 5), device(4, 5)]).kinds
    assert (stepless.steps, stepless.each) == (None, 5)
    gather, reduce = (
        device(1, 4, kind=kind) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
    )
    assert [one.each for one in side_by_side([gather, reduce]).kinds] == [None, None]


def test_nothing():
    told = side_by_side([])
    assert (told.timelines, told.extents, told.kinds) == (0, (), ())
