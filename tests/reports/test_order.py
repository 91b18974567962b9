"""The order check as people read it; what is computed is tested with the accounting."""

from overlapwatch.accounting.ranks.order import check_order
from overlapwatch.reports.order import MANY_NOTES, plain
from overlapwatch.timeline.issued import GroupKey
from tests.accounting.ranks.test_order import G, R, of_groups, rank, reached


def test_ranks_that_agree() -> None:
    text = plain(check_order([rank(n, (R, 10), (G, 4)) for n in range(4)]))
    assert "4 ranks (0–3): they issue the same collectives in 1 group\n" in text
    assert "agrees" in text
    assert "books close: 1 check" in text


def test_a_difference_names_the_odd_ranks_first() -> None:
    ranks = [rank(n, (R, 10), (R, 5), (G, 4), (R, 6)) for n in range(3)]
    text = plain(check_order([*ranks, rank(3, (R, 10), (G, 4), (R, 6))]))
    assert "they issue different collectives in default" in text
    lines = text.splitlines()
    few = next(n for n, line in enumerate(lines) if "AllGather of 4 elements" in line)
    assert lines[few].split()[0] == "3"
    assert "AllReduce of 5 elements" in lines[few + 1]
    assert "rank 3 differs from the 3 that agree" in text
    assert "rank 3 left out AllReduce of 5 elements: without that, the next 2 collectives" in text


def test_an_even_split_blames_nobody() -> None:
    text = plain(check_order([rank(0, (R, 1)), rank(1, (R, 2))]))
    assert "neither side is the odd one" in text
    assert "look there first" not in text


def test_the_ranks_behind_are_listed_whichever_side_is_larger() -> None:
    few = plain(check_order([reached(n, 640 if n in {5, 17} else 641) for n in range(32)]))
    assert "2 ranks behind" in few
    assert "the fewest are at 640: ranks 5, 17" in few
    many = plain(check_order([reached(n, 641 if n in {5, 17} else 640) for n in range(32)]))
    assert "30 ranks behind" in many
    assert "only ranks 5, 17 got that far" in many


def test_a_running_job_is_read_again() -> None:
    said = "read it again to see"
    ranks = [reached(0, 640), reached(1, 641)]
    assert said not in plain(check_order(ranks)).replace("\n  ", " ")
    running = [reached(0, 640, state="running"), reached(1, 641, state="running")]
    assert said in plain(check_order(running)).replace("\n  ", " ")


def test_what_is_not_known_is_told_once() -> None:
    groups = [GroupKey(f"group {n}", (0, 1, 2)) for n in range(5)]
    ranks = [
        of_groups(n, {key: rank(n, (R, 1), last=None, group=key).groups[key] for key in groups})
        for n in (0, 1)
    ]
    text = plain(check_order(ranks))
    assert text.count("how far it got is not known: sampled away") == 1
    assert text.count("no input of rank 2") == 1
    assert "group 0, group 1, group 2 and 2 more" in text


def test_thousands_of_remarks_are_counted() -> None:
    notes = tuple(f"remark {n}" for n in range(MANY_NOTES + 5))
    text = plain(check_order([rank(0, (R, 1), notes=notes), rank(1, (R, 1))]))
    assert "and 5 more remarks; --json has them all" in text
    assert f"remark {MANY_NOTES}" not in text


def test_narrow() -> None:
    ranks = [rank(n, (R, 10), (R, 5)) for n in range(3)]
    text = plain(check_order([*ranks, rank(3, (R, 10), (R, 6))]), 60)
    assert max(map(len, text.splitlines())) <= 60
