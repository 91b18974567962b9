from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.timeline.issued import ANY_SIZE, GroupKey, issued_of
from overlapwatch.timeline.model import Origin, Recording
from overlapwatch.vocabulary import RECORD, SUMMARY, CollectiveKind, Name, NameKind
from tests.support.scenarios import collective, profile, step_rows

R, A, P = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV
DEFAULT = Name(1, NameKind.GROUP, "default", (0, 1))


def summaries(*steps):
    rows = np.zeros(len(steps), SUMMARY)
    rows["step"] = steps
    return rows


def recording(*rows, state="closed", kept=(1, 2), summed=(1, 2), in_flight=(), **fields):
    tl = profile(communication=rows, groups={1: DEFAULT}, **fields)
    steps = step_rows([(n, n, n + 1) for n in kept])
    tl = replace(tl, origin=Origin("owlog", "x", 1, 2), steps=steps)
    flying = np.concatenate([np.empty(0, RECORD), *in_flight])
    return Recording(tl, summaries(*summed), in_flight=flying, state=state)


def one(number, kind=R, size=100, group=1):
    return collective(number, number + 1, kind=kind, size=size, group=group, sequence=number)


def test_rows_by_group_in_order() -> None:
    issued = issued_of(recording(one(2, size=7), one(1), one(1, group=2)))
    assert issued.rank == 1
    assert issued.unit == "bytes"
    rows = issued.groups[GroupKey("default", (0, 1))].rows
    assert rows["sequence"].tolist() == [1, 2]
    assert rows["size"].tolist() == [100, 7]
    assert GroupKey("group 2") in issued.groups  # its name is not known


def test_what_is_in_flight_counts_once() -> None:
    flying = one(3)
    flying["finish"] = 0
    issued = issued_of(recording(one(1), one(2), flying, in_flight=[flying]))
    (group,) = issued.groups.values()
    assert (group.rows["sequence"].tolist(), group.last) == ([1, 2, 3], 3)


def test_what_has_no_place_in_an_order_is_counted() -> None:
    issued = issued_of(recording(one(1), one(0), one(5, kind=P)))
    assert (issued.point_to_point, issued.unnumbered) == (1, 1)


def test_sizes_that_may_differ_are_none() -> None:
    issued = issued_of(recording(one(1, kind=A), one(2, kind=CollectiveKind.BARRIER)))
    (group,) = issued.groups.values()
    assert group.rows["size"].tolist() == [ANY_SIZE, ANY_SIZE]


def test_of_a_profile_only_sizes_that_all_ranks_share() -> None:
    rows = [one(1), one(2, kind=CollectiveKind.ALL_GATHER), one(3, size=0)]
    issued = issued_of(recording(*rows, state="profile"))
    (group,) = issued.groups.values()
    assert group.rows["size"].tolist() == [100, ANY_SIZE, ANY_SIZE]
    assert group.last is None
    assert "profiler" in issued.end_unknown


@pytest.mark.parametrize(
    ("state", "kept", "summed", "known"),
    [
        ("closed", (1, 2), (1, 2), True),
        ("closed", (1, 2), (1, 2, 3), False),  # the last step was not kept
        ("killed", (1, 2, 3), (1, 2), True),  # the ring holds the step that is not summed up
        ("killed", (1, 2), (1, 2), False),  # only what was flushed
        ("running", (1, 2, 3), (1, 2), True),
        ("unknown: on host b", (1, 2), (1, 2), False),
        ("closed", (), (), True),
    ],
)
def test_whether_the_end_is_known(state, kept, summed, known) -> None:
    issued = issued_of(recording(one(4), state=state, kept=kept, summed=summed))
    (group,) = issued.groups.values()
    assert group.last == (4 if known else None)
    assert bool(issued.end_unknown) is not known


def test_two_groups_of_one_name_are_not_told_apart() -> None:
    made = recording(one(1), one(1, size=5, group=2))
    groups = {1: DEFAULT, 2: replace(DEFAULT, id=2)}
    issued = issued_of(replace(made, timeline=replace(made.timeline, groups=groups)))
    (group,) = issued.groups.values()
    assert len(group.rows) == 0
    assert "share this name" in group.because
