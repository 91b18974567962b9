import numpy as np

from overlapwatch.hooks.recorder import BackwardReport, FinishBound
from overlapwatch.vocabulary import RECORD, CollectiveKind, RecordFlag, RecordKind
from overlapwatch.watching.assemble import EndedStep
from overlapwatch.watching.complete import Completer
from overlapwatch.watching.starts import estimate_starts


def records(*rows):
    made = np.zeros(len(rows), RECORD)
    for record, row in zip(made, rows, strict=True):
        for field, value in row.items():
            record[field] = value
    return made


def collective(launch, finish, **fields):
    return {"kind": RecordKind.COLLECTIVE, "group": 1, "launch": launch, "finish": finish, **fields}


def step(*rows, first_slot=100):
    made = records(*rows)
    return EndedStep(7, made, np.arange(first_slot, first_slot + len(made)), 0)


def report(buckets, ready, *, base=(0, 1_000), waited_until=10**9, parameters=(1, 2, 3, 4)):
    return BackwardReport(7, 0, ready, *base, waited_until, parameters, buckets)


def test_a_bucket_is_ready_when_its_last_gradient_is_and_that_one_is_named():
    done = step(collective(9_000, 20_000), collective(12_000, 25_000))
    said = report([(100, 9_000, (4, 3)), (101, 12_000, (2, 1))], [10_500, 9_000, 7_900, 7_000])
    gradients = Completer({}, on_host=True).complete(done, [said])
    # The first bucket's last gradient came 7,900 after the base: the base is 1,000, the latest it can be.
    assert done.records["ready"].tolist() == [8_900, 11_500]
    assert done.records["cause"].tolist() == [3, 1]
    assert sorted(gradients["ready"].tolist()) == [8_000, 8_900, 10_000, 11_500]


def test_a_finish_is_not_later_than_the_wait_for_it():
    done = step(collective(10, 500), collective(20, 90))
    said = report([(100, 10, ()), (101, 20, ())], [], waited_until=400)
    Completer({}, on_host=True).complete(done, [said])
    assert done.records["finish"].tolist() == [400, 90]
    assert (done.records["flags"] & RecordFlag.FINISH_ESTIMATED > 0).tolist() == [True, False]


def test_on_a_device_measured_times_stay_and_only_the_gating_parameter_is_added():
    done = step(
        {"kind": RecordKind.STEP, "start": 5, "finish": 900},
        collective(10, 500, ready=333, stream=1),
    )
    completer = Completer({}, on_host=False)
    completer.complete(done, [report([(101, 9_000, (4,))], [1, 1, 1, 7_900], waited_until=400)])
    assert done.records["ready"][1] == 333
    assert done.records["finish"][1] == 500
    assert done.records["cause"][1] == 4
    following = step({"kind": RecordKind.STEP, "start": 5, "finish": 1_800})
    completer.complete(following, [])
    assert following.records["start"][0] == 900, "a step begins where the one before it ended"


def test_the_worked_example_of_two_workers():
    made = records(collective(0, 10), collective(2, 14), collective(4, 20))
    estimate_starts(made, {1: 2})
    assert made["start"].tolist() == [0, 2, 10]
    assert (made["flags"] == RecordFlag.START_ESTIMATED).all()


def test_behind_a_collective_that_never_finished_nothing_is_estimated():
    made = records(collective(1, 10), collective(2, 0), collective(4, 20))
    estimate_starts(made, {1: 1})
    assert made["start"].tolist() == [1, 0, 0]


def test_groups_whose_backend_is_not_known_and_measured_starts_are_left_alone():
    made = records(collective(1, 10), collective(2, 12, group=2), collective(3, 30, start=9))
    estimate_starts(made, {1: 1})
    assert made["start"].tolist() == [1, 0, 9]


def wait(start, finish, **fields):
    return {"kind": RecordKind.WAIT, "start": start, "finish": finish, **fields}


def test_a_wait_ends_when_what_it_waited_for_did():
    done = step(
        collective(10, 40),  # over before anybody waited
        wait(50, 55),
        collective(20, 70),  # over while somebody waited
        wait(60, 75),
        collective(30, 300),  # its finish was stamped late: the wait proves that it was over
        wait(80, 90),
        collective(35, 0),  # nobody has told its finish
        wait(95, 99),
    )
    bounds = [
        FinishBound(7, 100 + i, 101 + i, int(done.records["finish"][i + 1])) for i in (0, 2, 4, 6)
    ]
    Completer({}, on_host=True).complete(done, [], bounds)
    assert done.records["finish"].tolist() == [40, 50, 70, 70, 90, 90, 99, 99]
    estimated = done.records["flags"] & RecordFlag.FINISH_ESTIMATED != 0
    assert np.flatnonzero(estimated).tolist() == [4, 6]


def test_a_wait_for_what_was_launched_in_the_step_before_is_left_as_it_was():
    done = step(wait(50, 55))
    Completer({}, on_host=True).complete(done, [], [FinishBound(7, 3, 100, 55)])
    assert done.records["finish"].tolist() == [55]


def test_on_a_device_gradients_are_complete_where_the_wait_to_reduce_them_begins():
    scatter = {"collective": CollectiveKind.REDUCE_SCATTER}
    done = step(
        wait(100, 130, owner=1, **scatter),
        collective(5, 200, start=140, owner=1, stream=1, **scatter),
        wait(150, 200, owner=2, **scatter),
        collective(6, 260, start=210, owner=2, stream=1, **scatter),
        wait(300, 310, owner=2, **scatter),
        collective(7, 0, owner=3, stream=1, **scatter),
    )
    Completer({}, on_host=False).complete(done, [])
    assert done.records["ready"].tolist() == [0, 100, 0, 150, 0, 0]
