"""DDP's own ready times on the clock of the records. The base they count from is only known to lie in the forward.

forward 1000 ... 2000       ready = base + what DDP says; taken to be 2000 unless a launch proves it earlier
"""

from overlapwatch.hooks.recorder import BackwardReport
from overlapwatch.watching.gradients import BucketReady, place

W, B, V = 11, 12, 13  # parameter ids


def report(after: list[int], buckets: list[tuple[int, int, tuple[int, ...]]]) -> BackwardReport:
    return BackwardReport(7, 0, after, 1_000, 2_000, 9_000_000, (W, B, V), buckets)


def test_a_bucket_is_ready_with_its_last_parameter_which_gates_it() -> None:
    gradients, buckets = place(report([300, 500, 900], [(1, 2_600, (B, W)), (2, 3_000, (V,))]))
    assert gradients.tolist() == [(7, W, 2_300), (7, B, 2_500), (7, V, 2_900)]
    assert buckets == [BucketReady(1, 2_500, B), BucketReady(2, 2_900, V)]


def test_a_launch_moves_the_base_earlier_since_it_cannot_come_before_its_gradients() -> None:
    # Bucket 1 was launched at 2200, 500 after a base that is thus not 2000 but 1700.
    gradients, buckets = place(report([300, 500, 900], [(1, 2_200, (B, W)), (2, 3_000, (V,))]))
    assert gradients["ready"].tolist() == [2_000, 2_200, 2_600]
    assert [bucket.ready_ns for bucket in buckets] == [2_200, 2_600]


def test_what_would_move_it_out_of_the_forward_is_not_believed() -> None:
    # An old value: 1500 before the launch lies before the forward began, and too far behind the launch to be slack.
    gradients, buckets = place(
        report([300, 500_000_000, 900], [(1, 2_400, (B, W)), (2, 3_000, (V,))])
    )
    assert gradients["parameter"].tolist() == [W, V]
    assert buckets == [BucketReady(1, 2_300, W), BucketReady(2, 2_900, V)]


def test_a_little_behind_the_launch_is_taken_as_the_launch() -> None:
    _, buckets = place(report([300, 2_500, 0], [(1, 3_100, (B, W))]))
    assert buckets == [BucketReady(1, 3_100, B)]


def test_what_took_no_part_has_no_time() -> None:
    gradients, buckets = place(report([0, 500, 900], [(1, 2_600, (B, W)), (2, 3_000, ())]))
    assert gradients["parameter"].tolist() == [B]  # V is in no bucket that is known
    assert buckets == [BucketReady(1, 2_500, B)]


def test_a_bucket_of_which_nothing_is_known_is_left_out() -> None:
    gradients, buckets = place(report([0, 0, 0], [(1, 2_600, (B, W))]))
    assert len(gradients) == 0
    assert buckets == []
