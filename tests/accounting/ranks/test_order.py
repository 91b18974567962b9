import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapwatch.accounting.ranks import order
from overlapwatch.accounting.ranks.order import OrderReduce, check_order
from overlapwatch.timeline.issued import (
    ANY_SIZE,
    ISSUED,
    GroupKey,
    Issued,
    IssuedGroup,
    code_of,
    in_order,
    texts_of,
)
from overlapwatch.vocabulary import CollectiveKind

R, G, A = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL
ALL = GroupKey("default")


def rows(*what, first=1, numbers=None):
    """What: (kind, size) or (kind, size, dtype) each."""
    found = np.zeros(len(what), ISSUED)
    for row, number, one in zip(
        found, numbers or range(first, first + len(what)), what, strict=True
    ):
        row["sequence"], row["kind"], row["size"] = number, one[0], one[1]
        row["dtype"] = code_of(one[2]) if len(one) > 2 else 0
    return found


def rank(number, *what, first=1, numbers=None, group=ALL, last="end", **fields):
    found = rows(*what, first=first, numbers=numbers)
    end = (int(found["sequence"][-1]) if len(found) else 0) if last == "end" else last
    groups = {group: in_order(found, end, "" if end is not None else "sampled away")}
    return of_groups(number, groups, **fields)


def of_groups(number, groups, **fields):
    given = {"path": f"rank{number}", "source": "test", "state": "killed", "unit": "elements"}
    return Issued(rank=number, groups=groups, texts=texts_of(["Float", "Half"]), **given | fields)


def one_group(*ranks):
    check = check_order(ranks)
    assert all(one.ok for one in check.checks())
    (group,) = check.groups
    return group


def test_ranks_that_agree() -> None:
    group = one_group(*(rank(number, (R, 10), (G, 4), (R, 3)) for number in range(4)))
    assert group.verdict == "agrees"
    assert (group.compared, group.on_all, group.first, group.last) == (3, 3, 1, 3)
    assert group.mismatch is None
    assert group.behind == ()


@pytest.mark.parametrize(
    ("theirs", "words"),
    [((G, 4), "AllGather of 4 elements"), ((R, 11), "AllReduce of 11 elements")],
)
def test_the_first_difference_and_the_minority(theirs, words) -> None:
    ranks = [rank(number, (R, 7), (R, 10), (R, 5)) for number in (0, 1, 3)]
    group = one_group(*ranks, rank(2, (R, 7), theirs, (R, 6)))
    assert group.verdict == "differs"
    assert group.mismatch.sequence == 2
    assert group.mismatch.minority == (2,)
    few, many = group.mismatch.sides
    assert (few.ranks, many.ranks) == ((2,), (0, 1, 3))
    assert few.what.text == words
    assert many.what.text == "AllReduce of 10 elements"
    assert group.mismatch.shift is None


def test_dtypes_differ() -> None:
    group = one_group(rank(0, (R, 7, "Float")), rank(1, (R, 7, "Half")), rank(2, (R, 7, "Float")))
    assert group.mismatch.minority == (1,)
    assert group.mismatch.sides[0].what.text == "AllReduce of 7 elements (Half)"


def test_an_even_split_has_no_minority() -> None:
    group = one_group(rank(0, (R, 7)), rank(1, (R, 8)))
    assert group.mismatch.sequence == 1
    assert group.mismatch.minority == ()


def test_what_is_not_known_contradicts_nothing() -> None:
    group = one_group(rank(0, (R, ANY_SIZE)), rank(1, (R, 8, "Half")), rank(2, (R, 8)))
    assert group.verdict == "agrees"


def test_uneven_all_to_alls_are_legal() -> None:
    # As the sources tell them: without a size.
    group = one_group(rank(0, (A, ANY_SIZE), (R, 1)), rank(1, (A, ANY_SIZE), (R, 1)))
    assert group.verdict == "agrees"


def test_a_rank_that_left_one_out() -> None:
    order = [(R, 7), (G, 4), (R, 10), (R, 5), (G, 2)]
    ranks = [rank(number, *order) for number in (0, 1, 2)]
    group = one_group(*ranks, rank(3, (R, 7), *order[2:]))
    shift = group.mismatch.shift
    assert (group.mismatch.sequence, shift.ranks, shift.left_out) == (2, (3,), 1)
    assert shift.what.text == "AllGather of 4 elements"
    assert shift.compared == 3
    assert [place.ranks for place in group.behind] == [(3,)]


def test_a_rank_that_issued_two_more() -> None:
    order = [(R, 7), (G, 4), (R, 10), (R, 5)]
    more = [(R, 7), (R, 99), (R, 98), *order[1:]]
    group = one_group(rank(0, *order), rank(1, *more), rank(2, *order))
    shift = group.mismatch.shift
    assert (shift.ranks, shift.left_out, shift.compared) == ((1,), -2, 3)
    assert shift.what.text == "AllReduce of 99 elements"


def test_groups_interleave_as_they_like() -> None:
    # Sequence numbers are by group, so an interleaving leaves no trace in them: only the group decides.
    a, b = GroupKey("a"), GroupKey("b")
    first = {a: in_order(rows((R, 1), (R, 2)), 2), b: in_order(rows((G, 3)), 1)}
    second = {b: in_order(rows((G, 3)), 1), a: in_order(rows((R, 1), (R, 2)), 2)}
    check = check_order([of_groups(0, first), of_groups(1, second)])
    assert check.agrees
    assert [one.verdict for one in check.groups] == ["agrees", "agrees"]


def test_groups_of_the_same_name_and_other_members_are_others() -> None:
    left, right = GroupKey("tp", (0, 1)), GroupKey("tp", (2, 3))
    ranks = [rank(number, (R, 1), group=left) for number in (0, 1)]
    ranks += [rank(number, (R, 2), group=right) for number in (2, 3)]
    check = check_order(ranks)
    assert check.agrees
    assert [one.ranks for one in check.groups] == [(0, 1), (2, 3)]


# -- who is behind (case 27) -----------------------------------------------------------------------


def reached(number, last, **fields):
    return rank(number, *[(R, 10)] * (last - 600), first=601, **fields)


def test_two_of_32_ranks_are_behind() -> None:
    behind = {5, 17}
    group = one_group(*(reached(n, 640 if n in behind else 641) for n in range(32)))
    assert group.verdict == "behind"
    (position,) = group.behind
    assert (position.sequence, position.ranks) == (640, (5, 17))
    assert group.minority == position


def test_thirty_of_32_ranks_are_behind() -> None:
    """The two that went ahead are the minority, and the thirty are still the ones behind."""
    ahead = {5, 17}
    group = one_group(*(reached(n, 641 if n in ahead else 640) for n in range(32)))
    (position,) = group.behind
    assert position.sequence == 640
    assert len(position.ranks) == 30
    assert group.minority.ranks == (5, 17)


def test_behind_is_by_group() -> None:
    a, b = GroupKey("a", (0, 1)), GroupKey("b", (1, 2))
    middle = {a: in_order(rows((R, 1), (R, 1)), 2), b: in_order(rows((R, 1)), 1)}
    check = check_order(
        [
            rank(0, (R, 1), (R, 1), group=a),
            of_groups(1, middle),
            rank(2, (R, 1), (R, 1), group=b),
        ]
    )
    assert [(one.group.name, one.verdict) for one in check.groups] == [
        ("b", "behind"),
        ("a", "agrees"),
    ]
    assert check.groups[0].behind[0].ranks == (1,)


def test_a_member_that_issued_nothing_is_behind() -> None:
    a = GroupKey("a", (0, 1, 2))
    group = one_group(rank(0, (R, 1), group=a), rank(1, (R, 1), group=a), of_groups(2, {}))
    assert group.behind[0].sequence == 0
    assert group.behind[0].ranks == (2,)
    assert group.ranks == (0, 1, 2)


def test_a_member_without_input_is_absent_not_behind() -> None:
    a = GroupKey("a", (0, 1, 2))
    group = one_group(rank(0, (R, 1), group=a), rank(1, (R, 1), group=a))
    assert group.verdict == "agrees"
    assert group.absent == (2,)


def test_an_end_that_is_not_known_is_not_behind() -> None:
    group = one_group(rank(0, (R, 1), (R, 2)), rank(1, (R, 1), last=None))
    assert group.verdict == "agrees"
    assert group.end_unknown == (("sampled away", (1,)),)


# -- rings that dropped their early entries (case 28) ---------------------------------------------


def test_only_the_common_range_is_compared_and_told() -> None:
    order = [(R, size) for size in range(100, 120)]
    group = one_group(rank(0, *order), rank(1, *order[5:], first=6), rank(2, *order[12:], first=13))
    assert group.verdict == "agrees"
    assert (group.first, group.last, group.on_all) == (13, 20, 8)
    assert group.compared == 15
    assert [(p.sequence, p.ranks) for p in group.late_starts] == [(6, (1,)), (13, (2,))]


def test_without_a_common_range_nothing_is_claimed() -> None:
    check = check_order([rank(0, (R, 1), (R, 2)), rank(1, (G, 9), first=50)])
    (group,) = check.groups
    assert group.compared == 0
    assert group.mismatch is None
    assert "no collective is known of two" in check.unknown[0].because


def test_sampled_steps_are_compared_where_both_know_them() -> None:
    group = one_group(
        rank(0, (R, 1), (R, 2), (R, 3), (R, 4)),
        rank(1, (R, 1), (R, 4), numbers=[1, 4]),
        rank(2, (R, 3), (R, 5), numbers=[3, 4]),
    )
    assert group.mismatch.sequence == 4
    assert group.mismatch.minority == (2,)
    assert group.mismatch.sides[1].ranks == (0, 1)


# -- input that is not as it should be -----------------------------------------------------------


def test_groups_that_share_a_name_are_not_compared() -> None:
    ambiguous = IssuedGroup(np.concatenate((rows((R, 1)), rows((R, 2)))), 1)
    group = in_order(ambiguous.rows, 1)
    assert len(group.rows) == 0
    assert group.last is None
    assert "share this name" in group.because


def test_a_rank_twice_and_other_units_are_left_out() -> None:
    check = check_order([rank(0, (R, 1)), rank(0, (R, 2)), rank(1, (R, 9), unit="bytes")])
    assert check.ranks == (0,)
    assert len(check.notes) == 2
    assert "left out" in check.notes[0]


def test_a_rank_without_a_number_gets_one() -> None:
    check = check_order([rank(0, (R, 1)), rank(None, (R, 1))])
    assert check.ranks == (0, 1)
    assert "does not say its rank" in check.notes[0]


def test_one_rank_alone_says_nothing_of_the_order() -> None:
    check = check_order([rank(0, (R, 1))])
    assert check.groups[0].verdict == "not compared"
    assert check.unknown[0].because == "there is one rank only"


def test_endlessly_many_different_sequences_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(order, "MAX_STRANDS", 20)
    reduce = OrderReduce()
    for number in range(70):
        reduce.add(rank(number, (R, number)))
    check = reduce.result()
    assert check.groups[0].mismatch.sequence == 1
    assert any("50 ranks" in one.what for one in check.unknown)


# -- against a plain reference --------------------------------------------------------------------

WHAT = st.sampled_from([(R, 1), (R, 2), (G, 1), (R, ANY_SIZE)])


@st.composite
def jobs(draw):
    """Ranks that mostly issue the same, each of which knows a part of it."""
    order = draw(st.lists(WHAT, min_size=1, max_size=8))
    ranks = []
    for number in range(draw(st.integers(1, 5))):
        mine = list(order)
        for _ in range(draw(st.integers(0, 1))):
            mine[draw(st.integers(0, len(mine) - 1))] = draw(WHAT)
        known = draw(st.sets(st.integers(1, len(mine))))
        ranks.append((number, {n: mine[n - 1] for n in sorted(known)}))
    return ranks


def contradict(a, b):
    return a[0] != b[0] or (ANY_SIZE not in {a[1], b[1]} and a[1] != b[1])


@given(jobs())
@settings(max_examples=300)
def test_the_first_mismatch_is_the_first_pair_of_ranks_that_contradict_each_other(job) -> None:
    check = check_order(rank(number, *known.values(), numbers=list(known)) for number, known in job)
    numbers = sorted({n for _, known in job for n in known})
    expected = next(
        (
            n
            for n in numbers
            for (_, a), (_, b) in itertools.combinations(job, 2)
            if n in a and n in b and contradict(a[n], b[n])
        ),
        None,
    )
    assert all(one.ok for one in check.checks())
    if not check.groups:
        assert not numbers
        return
    group = check.groups[0]
    assert (group.mismatch.sequence if group.mismatch else None) == expected
    everywhere = [n for n in numbers if all(n in known for _, known in job)]
    assert group.on_all == len(everywhere)
    assert group.compared == sum(sum(n in known for _, known in job) > 1 for n in numbers)
    if expected is not None:
        sides = group.mismatch.sides
        assert sorted(r for side in sides for r in side.ranks) == [
            number for number, known in job if expected in known
        ]
