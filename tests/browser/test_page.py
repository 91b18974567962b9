"""The page in Chromium: the worked example in its lanes, what is told of a block, and every way to move through it."""

from dataclasses import replace

import numpy as np
import pytest

from overlapwatch.reports import format as written
from overlapwatch.reports.html.page import asset
from overlapwatch.timeline.model import Origin
from overlapwatch.timeline.records import from_records
from overlapwatch.vocabulary import RECORD, CollectiveKind, Phase, RecordKind
from tests.browser.conftest import NARROW, drawn
from tests.reports import recordings

GUTTER = 88  # of the painter, px: what stands left of time 0
COMPUTE_Y, SENT_Y, BAND_Y = 30, 54, 71  # of the first rank, where the lanes have one row each
STEP_MS = 7.0  # of the worked example
CANVAS = "canvas.lanes"


@pytest.fixture
def worked(opened):
    return opened(recordings.worked())


def place(page, ms: float, y: float, whole_ms: float = STEP_MS) -> dict[str, float]:
    """The point of the canvas at a time, while the whole step is shown."""
    width = page.locator(CANVAS).bounding_box()["width"]
    return {"x": GUTTER + ms / whole_ms * (width - GUTTER), "y": y}


def colour_at(page, ms: float, y: float) -> str:
    at = place(page, ms, y)
    rgba = page.locator(CANVAS).evaluate(
        """(canvas, at) => { const ratio = canvas.width / canvas.clientWidth;
        return [...canvas.getContext("2d").getImageData(at.x * ratio, at.y * ratio, 1, 1).data]; }""", at)  # fmt: skip
    return "#{:02x}{:02x}{:02x}".format(*rgba[:3]) if rgba[3] == 255 else ""


def variable(page, name: str) -> str:
    return page.evaluate(
        "(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()",
        f"--{name}",
    )


def card(page) -> list[str]:
    """The lines of the card; nothing while it is hidden."""
    shown = page.locator(".card")
    text = shown.inner_text().replace("\t", " ") if shown.is_visible() else ""
    return [line for line in text.splitlines() if line]


def test_the_lanes_show_the_worked_example(worked):
    """Compute to 6 ms; sends at 2-3, 4-5 and 6-7 ms, of which only the last is exposed."""
    compute, sent = variable(worked, "compute-backward"), variable(worked, "communication")
    for ms in (0.5, 2.5, 5.6):
        assert colour_at(worked, ms, COMPUTE_Y + 6) == compute
    for begin in (2, 4, 6):
        assert colour_at(worked, begin + 0.9, SENT_Y) == sent
        assert colour_at(worked, begin - 0.3, SENT_Y) == ""
    exposed = variable(worked, "exposed")
    assert colour_at(worked, 6.5, BAND_Y) == exposed
    assert colour_at(worked, 5.5, BAND_Y) == ""
    assert worked.locator("#lanes .facts").first.inner_text() == "step 0 7.00 ms, tail 1.00 ms"


def test_a_block_is_told_with_its_times_and_how_they_came_to_be(worked):
    worked.hover(CANVAS, position=place(worked, 6.5, SENT_Y))
    told = card(worked)
    assert told[:2] == ["bucket 2", "AllReduce, 120 B, backward"]
    assert [line for line in told if line.split(" ")[0] in {"ready", "launch", "start", "finish", "compute"}] == [
        "ready 6.00 ms measured", "launch 6.00 ms measured", "start 6.00 ms measured", "finish 7.00 ms measured",
        "compute waited 1.00 ms while it ran",
    ]  # fmt: skip
    assert "1.00 ms long, hidden 0 ms (0.0 %)" in told
    assert "last gradient: embedding.weight" in told
    worked.hover(CANVAS, position=place(worked, 3, COMPUTE_Y))
    assert card(worked)[:2] == ["backward", "compute, backward"]
    worked.hover(CANVAS, position=place(worked, 3.5, SENT_Y))
    assert card(worked) == []


def test_estimated_and_missing_times_are_told(opened):
    page = opened(recordings.host_times())
    page.hover(CANVAS, position=place(page, 2.5, SENT_Y))
    told = card(page)
    assert "start – not recorded" in told
    assert "finish 3.00 ms estimated" in told
    page.locator("#lanes details summary").click()
    assert "~3.00" in page.locator("#lanes details table").inner_text()


def test_with_the_keyboard_alone(worked):
    page = worked
    page.focus(CANVAS)
    page.keyboard.press("n")
    page.keyboard.press("n")
    assert card(page)[0] == "bucket 1"
    assert "bucket 1" in page.locator(".spoken").inner_text()
    page.keyboard.press("p")
    assert card(page)[0] == "bucket 0"
    page.keyboard.press("Escape")
    assert card(page) == []
    # Nearer around the middle: 1.17 to 5.83 ms are in view, and 4.37 ms lie where 4.8 ms lay.
    page.keyboard.press("+")
    drawn(page)
    page.hover(CANVAS, position=place(page, 4.8, SENT_Y))
    assert card(page)[0] == "bucket 1"
    at_right = place(page, 6.9, SENT_Y)
    page.hover(CANVAS, position=at_right)
    assert card(page) == []
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    drawn(page)
    page.hover(CANVAS, position=at_right)
    assert card(page)[0] == "bucket 2"
    page.keyboard.press("0")
    drawn(page)
    assert colour_at(page, 2.9, SENT_Y) == variable(page, "communication")
    page.keyboard.press("]")
    assert (
        page.locator("#lanes select")
        .evaluate("(one) => one.selectedOptions[0].text")
        .startswith("step 1:")
    )


def test_zoom_with_the_wheel_and_pan_with_the_pointer(worked):
    page = worked
    page.hover(CANVAS, position=place(page, 6.5, SENT_Y))
    scrolled = "() => scrollY"
    page.mouse.wheel(0, 100)
    page.wait_for_function(
        "() => scrollY > 0"
    )  # the wheel scrolls the page until the lanes are asked to listen
    page.evaluate("() => scrollTo(0, 0)")
    page.locator(CANVAS).click(position=place(page, 6.5, SENT_Y))
    page.mouse.wheel(0, -600)
    drawn(page)
    assert page.evaluate(scrolled) == 0
    page.hover(CANVAS, position=place(page, 3.5, SENT_Y))
    assert card(page) == []  # what is there now is shortly before 6 ms
    box = page.locator(CANVAS).bounding_box()
    page.mouse.move(box["x"] + 700, box["y"] + SENT_Y)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + SENT_Y, steps=4)
    page.mouse.up()
    drawn(page)
    page.hover(CANVAS, position=place(page, 3.5, SENT_Y))
    assert card(page)[0] == "bucket 2"


def test_a_worst_step_opens_in_the_lanes(opened):
    page = opened(recordings.typical(0), recordings.typical(1))
    assert (
        page.locator("#steps caption").first.inner_text()
        == "the steps with the longest tails, and the longest steps"
    )
    page.locator("#steps button[data-step='30']").first.click()
    drawn(page)
    assert page.locator("#lanes .facts strong").inner_text() == "step 30"
    assert "rank 1: 411.8 ms, tail 203.0 ms" in page.locator("#lanes .facts").first.inner_text()
    page.locator("#ranks button[data-step]").first.click()  # a worst tail of all ranks
    assert page.evaluate("() => document.activeElement.tagName") == "CANVAS"


def test_a_step_without_events_says_so(opened):
    one = recordings.worked()
    kept = one.timeline.communication["step"] != 5
    timeline = replace(one.timeline, steps=one.timeline.steps[one.timeline.steps["step"] != 5],
                       communication=one.timeline.communication[kept])  # fmt: skip
    rows = one.summaries.copy()
    rows["tail_ns"][rows["step"] == 5] += 1_000_000
    page = opened(replace(one, timeline=timeline, summaries=rows))
    page.locator("#steps button[data-step='5']").first.click()
    said = page.locator("#steps [role=status]").inner_text()
    assert said == "step 5 cannot be drawn: its events are not in the input, only its numbers"
    assert page.locator("#lanes .facts strong").inner_text() != "step 5"


def test_the_curve_over_the_steps_by_keyboard(worked):
    charts = worked.locator("#steps .charts")
    charts.focus()
    charts.press("End")
    told = worked.locator("#steps .facts").first
    assert told.inner_text() == "step 7: 7.00 ms, tail 1.00 ms, exposed 1.00 ms, hidden 2.00 ms"
    charts.press("ArrowLeft")
    charts.press("Enter")
    assert worked.locator("#lanes .facts strong").inner_text() == "step 6"


def test_another_rank_is_told(opened):
    one = recordings.worked()
    origin = Origin("owlog", "runs/a/rank1-5f3a91c2.owlog", 1, 2, "cpu", "pid 4243", "node-a")
    page = opened(
        one,
        replace(recordings.queued(), timeline=replace(recordings.queued().timeline, origin=origin)),
    )
    assert page.locator(".figures .value").first.inner_text() == "66.7 %"
    page.select_option("#rank", label="rank 1")
    assert page.locator(".figures .value").first.inner_text() == "33.3 %"
    assert page.locator("#time h2").inner_text() == "Where the time went, rank 1"
    assert page.locator("#steps .uplot").count() == 2


def test_light_and_dark(opened):
    page = opened(recordings.worked(), color_scheme="dark")
    dark = variable(page, "paper")
    assert colour_at(page, 2.9, SENT_Y) == variable(page, "communication")
    button = page.locator("button.theme")
    button.click()
    drawn(page)
    assert button.inner_text() == "theme: light"
    light = variable(page, "paper")
    assert light != dark
    assert colour_at(page, 2.9, SENT_Y) == variable(page, "communication")  # drawn anew
    button.click()
    assert variable(page, "paper") == dark
    page.emulate_media(color_scheme="light")
    button.click()
    assert variable(page, "paper") == light


@pytest.mark.parametrize("name", ["typical", "fsdp2", "profiled", "hostile"])
def test_a_narrow_window_needs_no_sideways_scrolling(opened, name):
    page = opened(getattr(recordings, name)(), viewport=NARROW)
    assert page.evaluate("() => document.documentElement.scrollWidth") == NARROW["width"]
    page.locator("#lanes details summary").click()
    assert page.evaluate("() => document.documentElement.scrollWidth") == NARROW["width"]


def test_names_of_the_input_stay_text(opened):
    hostile = "</script><script>document.title = 'taken'</script><img src=x>"
    names = (*recordings.PARAMETERS[1:], hostile)
    page = opened(
        recordings.Job(names=names, bucket_label=hostile).recording(about={"run": hostile})
    )
    assert page.title().startswith("overlapwatch: ")
    assert page.locator("img").count() == 0
    page.hover(CANVAS, position=place(page, 2.5, SENT_Y))
    assert card(page)[0] == f"{hostile} 0"
    assert hostile in page.locator("#more dl").first.inner_text()


def test_numbers_are_written_as_in_the_text_report(browser):
    """The page's rules of writing numbers are those of `reports.format`."""
    values = sorted({sign * round(base * 10**power) for base in (1, 1.005, 1.125, 2.5, 4.999, 9.995, 9.9949) for power in range(13) for sign in (1, -1)} | {0})  # fmt: skip
    page = browser.new_page()
    page.evaluate(
        asset("format.js") + "; window.told = { ms, duration, size, percent, scale, counted }"
    )
    call = "([name, values]) => values.map((one) => told[name](...[one].flat()))"
    try:
        for name, function in (("ms", written.ms), ("duration", written.duration)):
            assert page.evaluate(call, [name, values]) == [function(one) for one in values], name
        sizes = [one for one in values if one >= 0]
        assert page.evaluate(call, ["size", sizes]) == [written.size(one) for one in sizes]
        pairs = [[a, b] for a in sizes[::7] for b in sizes[::5]]
        told = page.evaluate("(pairs) => pairs.map(([a, b]) => told.percent(a, b))", pairs)
        assert told == [written.percent(a, b) for a, b in pairs]
        for several in (
            values[::3],
            [5_000_000, 231_800_000],
            [40_000, 231_800_000],
            [1_000_000, 7_000_000],
            [10_500, 800_000],
            [0],
        ):
            write = written.scale(several)
            assert page.evaluate("(all) => all.map(told.scale(all))", several) == [
                write(one) for one in several
            ]
        assert page.evaluate(call, ["ms", [None]]) == [written.ms(None)]
    finally:
        page.close()


def test_it_prints(opened):
    page = opened(recordings.typical(0), recordings.typical(1), color_scheme="dark")
    assert page.pdf(format="A4")[:5] == b"%PDF-"
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()


def test_an_empty_input_is_a_page(opened):
    page = opened(recordings.Recording(recordings.Timeline(Origin("kineto", "empty.json"))))
    assert "There is nothing to draw" in page.locator("#lanes").inner_text()
    assert "Not known" in page.locator("#page").inner_text()


def test_a_hang_is_drawn_open(opened):
    """Step 8 has begun, its first bucket was launched at 2 ms and never finished."""
    job = recordings.Job(state="killed")
    records = np.concatenate([job.records(), np.zeros(3, RECORD)])
    end = recordings.ns(8 * STEP_MS)
    for row, kind in zip(
        records[-3:], (RecordKind.STEP, RecordKind.PHASE, RecordKind.COLLECTIVE), strict=True
    ):
        row["kind"], row["step"], row["start"] = kind, 8, end
    records["phase"][-2:] = Phase.BACKWARD
    flying = records[-1:]
    flying["start"], flying["owner"], flying["collective"] = 0, 101, CollectiveKind.ALL_REDUCE
    flying["ready"] = flying["launch"] = end + 2_000_000
    one = job.recording()
    timeline = from_records(
        records, origin=one.timeline.origin, names=job.tables(), groups=one.timeline.groups
    )
    page = opened(replace(one, timeline=timeline, in_flight=flying.copy()))
    assert "was killed, in step 8" in page.locator(".alerts").inner_text()
    assert (
        page.locator("#lanes .facts strong").inner_text() == "step 8"
    )  # what hangs is looked at first
    page.focus(CANVAS)
    page.keyboard.press("n")
    told = card(page)
    assert told[0] == "bucket 0"
    assert "finish – not finished" in told
    assert "its span is not known" in told
