import numpy as np
import pytest

from overlapwatch.accounting.partition import partition
from overlapwatch.accounting.selection import Selection, choose, partition_of_steps, window_of_steps
from overlapwatch.accounting.summarize import summarize
from overlapwatch.accounting.window import Window
from overlapwatch.errors import ConfigurationError
from overlapwatch.timeline.model import Recording
from overlapwatch.vocabulary import StepFlag
from tests.support.scenarios import MS, at, collective, profile, step_rows


def log(numbers, flags=(), *, state="closed", ran=None):
    """Steps of 10 ms at 10 ms times their number: compute 0-6, communication 4-8."""
    steps = step_rows([(number, 10 * number, 10 * number + 10) for number in numbers])
    for number, flag in flags:
        steps["flags"][steps["step"] == number] = flag
    compute = [(10 * number, 10 * number + 6) for number in numbers]
    sends = [collective(10 * number + 4, 10 * number + 8, step=number) for number in numbers]
    tl = profile(compute, sends, steps=steps)
    every = step_rows([(number, 10 * number, 10 * number + 10) for number in ran or numbers])
    every["flags"][np.isin(every["step"], steps["step"])] = steps["flags"]
    summaries = summarize(profile(compute, sends, steps=every))
    return Recording(tl, summaries=summaries, state=state)


def test_a_log_is_its_steps_in_statistics_without_the_time_between():
    flags = [(1, StepFlag.UNBUCKETED), (3, StepFlag.SHADOW)]
    choice = choose(log([1, 2, 3, 4, 9], flags, ran=range(1, 10)), Selection())
    window = choice.window
    assert (window.start_ns, window.end_ns, window.length_ns) == (at(20), at(100), 30 * MS)
    assert window.rule == "3 steps in statistics, 2 to 9"
    assert choice.steps.tolist() == [2, 4, 9]
    assert len(choice.timeline.steps) == 5
    assert len(choice.summaries) == 9
    assert choice.notes == ()


def test_parts_of_steps_with_gaps_are_the_sum_of_the_steps():
    tl = log([2, 3, 7]).timeline
    found = partition_of_steps(tl, tl.steps)
    alone = [partition(tl, Window(int(step["start"]), int(step["end"]), "")) for step in tl.steps]
    for field in (
        "window_ns",
        "compute_ns",
        "communication_ns",
        "overlap_ns",
        "communication_only_ns",
        "idle_ns",
    ):
        assert getattr(found, field) == sum(getattr(one, field) for one in alone)
    assert (found.window_ns, found.idle_ns) == (30 * MS, 6 * MS)


def test_a_range_of_steps():
    choice = choose(log([1, 2, 3, 4]), Selection(first_step=2, last_step=3))
    assert (choice.window.start_ns, choice.window.end_ns) == (at(20), at(40))
    assert choice.timeline.steps["step"].tolist() == [2, 3]
    assert choice.timeline.communication["step"].tolist() == [2, 3]
    assert choice.summaries["step"].tolist() == [2, 3]
    assert choose(log([1, 2]), Selection(first_step=2)).window.rule == "1 step in statistics: 2"
    assert choose(log([1, 2]), Selection(last_step=1)).steps.tolist() == [1]


def test_a_step_out_of_statistics_can_be_looked_at():
    choice = choose(log([1, 2], [(1, StepFlag.UNBUCKETED)]), Selection(1, 1))
    assert choice.window.rule == "1 step out of statistics: 1"
    assert len(choice.notes) == 1


def test_a_profile_is_its_whole_capture_unless_steps_are_asked_for():
    recording = log([2, 3], state="profile")
    whole = choose(recording, Selection())
    assert (whole.window.start_ns, whole.window.end_ns) == (at(20), at(38))
    assert whole.steps.tolist() == []
    assert choose(recording, Selection(3, 3)).window.start_ns == at(30)


def test_no_steps_is_the_whole_capture():
    recording = Recording(profile([(1, 5)]), state="killed")
    assert choose(recording, Selection()).window.length_ns == 4 * MS
    assert choose(Recording(profile()), Selection()).window.length_ns == 0


def test_trim():
    choice = choose(log([2, 3, 4], state="profile"), Selection(trim=(0.009, 0.0205)))
    assert (choice.window.start_ns, choice.window.end_ns) == (at(29), at(40.5))
    assert choice.window.rule == "0.009 to 0.0205 s"
    assert choice.timeline.steps["step"].tolist() == [3]
    assert choice.summaries["step"].tolist() == [3]


@pytest.mark.parametrize("boundary", ["clip", "contained"])
@pytest.mark.parametrize("selection", [{}, {"first_step": 2}, {"trim": (0.001, 0.002)}])
def test_the_boundary_rule_is_carried(boundary, selection):
    assert (
        choose(log([1, 2, 3]), Selection(boundary=boundary, **selection)).window.boundary
        == boundary
    )


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Selection(8, 9), "steps 8 to 9 not found; events were kept of 3 steps from 1 to 5"),
        (Selection(8), "steps from 8 not found"),
        (Selection(4, 4), "step 4 ran, but without their events"),
        (Selection(4, 4), "the nearest are 2 and 5"),
        (Selection(1, trim=(0.0, 1.0)), "choose steps or a trim in seconds, not both"),
        (
            Selection(trim=(7.0, 9.0)),
            "nothing was captured from 7 to 9 s; the capture of it reaches from 0.000 to 0.048 s",
        ),
        (Selection(trim=(0.02, 0.01)), "must end after it starts"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(selection, sentence):
    with pytest.raises(ConfigurationError) as caught:
        choose(log([1, 2, 5], ran=range(1, 6), state="profile"), selection)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_range_of_shadow_steps_has_no_events():
    with pytest.raises(ConfigurationError, match="ran, but without their events"):
        choose(log([1, 2, 3], [(2, StepFlag.SHADOW)]), Selection(2, 2))
    with pytest.raises(ConfigurationError, match="the events of no step were kept"):
        choose(log([2], [(2, StepFlag.SHADOW)]), Selection(2, 2))


def test_touching_steps_have_no_edge_between_them():
    window = window_of_steps(step_rows([(1, 0, 10), (2, 10, 20), (4, 30, 40)]), "contained")
    assert window.recorded.start.tolist() == [at(0), at(30)]
    assert window.recorded.end.tolist() == [at(20), at(40)]
