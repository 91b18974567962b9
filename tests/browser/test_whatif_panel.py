"""The what-if of the page in a browser: its arithmetic is that of the package, to the ns, and its inputs move it."""

import json
import operator
from itertools import accumulate

import numpy as np
import pytest

from overlapwatch.accounting.analyse import analyse
from overlapwatch.commands import main
from overlapwatch.reports.html.page import SCRIPTS, asset
from overlapwatch.reports.html.whatif import whatif_payload
from overlapwatch.whatif.bucketing import assign, limits
from overlapwatch.whatif.cost import Cost
from overlapwatch.whatif.ddp import DEFAULT_CAPS_MB, complete_at, ddp_forecast
from overlapwatch.whatif.engines import TwoEngines, queue, two_engines
from tests.reports.recordings import Job, profiled
from tests.support import jobs
from tests.whatif import test_ddp as ddp

MS = 1_000_000
CASES = 200
OWN = [name for name in SCRIPTS if name.startswith(("engines", "whatif"))]
TOOLS = ["format.js", "element.js"]


# -- the package's answers ---------------------------------------------------------------------------------------------


def scaled(value, numerator, denominator):
    """Rounded half up, exactly."""
    return (2 * value * numerator + denominator) // (2 * denominator)


def moved(step, change):
    """Where segments of compute lie under a change, where each block ends, and where a recorded moment goes."""
    now, was_end, is_end = [], [], []
    for block, count in enumerate(step["segments"]):
        mine = step["compute_ns"][len(now) : len(now) + count]
        after = scaled(change["compute"].get(block, sum(mine)), change["compute_permille"], 1000)
        if sum(mine):
            reached = [scaled(done, after, sum(mine)) for done in accumulate(mine)]
        else:
            reached = [0] * (count - 1) + [after]
        now += np.diff([0, *reached]).tolist()
    old = list(accumulate(map(operator.add, step["still_ns"], step["compute_ns"])))
    end = list(accumulate(map(operator.add, step["still_ns"], now)))
    start = [at - ns for at, ns in zip(end, now, strict=True)]
    for last in accumulate(step["segments"]):
        was_end.append(old[last - 1])
        is_end.append(end[last - 1])

    def move(moment, block=None):
        if block is not None and moment == was_end[block]:
            return is_end[block]
        for i, was in enumerate(old):
            if moment == was:
                return end[i]
            if moment < was:
                into = moment - (was - step["compute_ns"][i])
                return start[i] + (
                    scaled(into, now[i], step["compute_ns"][i]) if into > 0 else into
                )
        return end[-1] + moment - old[-1]

    return start, end, move


def expected(step, run, change):
    """`enginesStep` from the package's own queue, bucketing, cost and two engines."""
    start, end, move = moved(step, change)
    cost = change["cost"] and Cost(change["cost"]["latency_ns"], change["cost"]["ns_per_byte"])
    sizes = np.array([bucket["bytes"] for bucket in run["buckets"]], np.int64)
    if change["limits"] is None:
        ready = [move(at, run["block_of"][i]) for i, at in enumerate(step["ready_ns"])]
        launch = np.array(ready, np.int64) + step["delay_ns"]
        taken = cost.of(sizes).tolist() if cost else step["service_ns"]
        service = [change["communication"].get(i, ns) for i, ns in enumerate(taken)]
    else:
        layout = run["layout"]
        members = assign(layout["sizes"], change["limits"], layout["types"])
        ready = np.array([move(at) for at in step["gradients_ns"]], np.int64)
        launch = complete_at(ready, members) + layout["launch_delay_ns"]
        service = cost.of(
            np.array([sum(layout["sizes"][i] for i in m) for m in members], np.int64)
        ).tolist()
    service = [scaled(ns, change["communication_permille"], 1000) for ns in service]
    engines = TwoEngines(
        np.array(start, np.int64),
        np.array(end, np.int64),
        *queue(launch, np.array(service, np.int64)),
    )
    return {
        "start": engines.start.tolist(),
        "finish": engines.finish.tolist(),
        "serial_ns": engines.serial_ns,
        "communication_ns": engines.communication_ns,
        "total_ns": engines.total_ns,
        "tail_ns": engines.tail_ns,
        "hidden_ns": engines.hidden_ns,
        "exposed_ns": engines.exposed_ns,
        "step_ns": step["recorded"]["step_ns"] + engines.total_ns - step["recorded"]["total_ns"],
    }


def random_case(rng):
    """A step, what its run is, and a change; times up to an hour, so that products leave 2^53."""
    buckets = int(rng.integers(1, 9))
    longest = int(10 ** rng.integers(1, 13))

    def times(count):
        drawn = rng.integers(0, longest, count)
        return np.where(rng.random(count) < 0.2, 0, drawn)

    segments = rng.integers(1, 5, buckets + 2)
    still, compute = times(segments.sum()), times(segments.sum())
    edges = np.cumsum(still + compute)[np.cumsum(segments) - 1]
    late = np.where(rng.random(buckets) < 0.2, times(buckets), 0)
    parameters = int(rng.integers(1, 20))
    step = {
        "still_ns": still.tolist(),
        "compute_ns": compute.tolist(),
        "segments": segments.tolist(),
        "ready_ns": (edges[1:-1] + late).tolist(),
        "delay_ns": times(buckets).tolist(),
        "service_ns": times(buckets).tolist(),
        "gradients_ns": rng.integers(0, int(edges[-1] * 1.1) + 1, parameters).tolist(),
        "recorded": {"step_ns": int(edges[-1]) + longest, "total_ns": int(edges[-1])},
    }
    run = {
        "block_of": list(range(1, buckets + 1)),
        "buckets": [{"bytes": int(size)} for size in rng.integers(1, 1 << 30, buckets)],
        "layout": {
            "sizes": rng.integers(1, 1 << 24, parameters).tolist(),
            "types": rng.integers(0, 2, parameters).tolist(),
            "launch_delay_ns": int(rng.integers(0, 1_000_000)),
        },
    }
    cost = {
        "latency_ns": None if rng.random() < 0.2 else int(rng.integers(0, 1_000_000)),
        "ns_per_byte": float(rng.random() * rng.choice([0.001, 0.5, 20])),
    }
    other = rng.random() < 0.4
    some = rng.random(buckets + 2) < 0.3
    change = {
        "compute_permille": int(rng.choice([0, 250, 999, 1000, 1000, 3000])),
        "communication_permille": int(rng.choice([0, 333, 1000, 1000, 2500])),
        "compute": {i: int(ns) for i, ns in enumerate(times(buckets + 2)) if some[i]},
        "communication": {i: int(ns) for i, ns in enumerate(times(buckets)) if some[i]},
        "cost": cost if other or rng.random() < 0.4 else None,
        "limits": rng.integers(1, 1 << 25, int(rng.integers(1, 3))).tolist() if other else None,
    }
    return step, run, change


# -- the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(browser):
    """A page with the what-if's scripts and nothing else."""
    page = browser.new_page()
    page.set_default_timeout(10_000)
    page.set_content("<!doctype html><title>what if</title>")
    for name in [*TOOLS, *OWN]:
        page.add_script_tag(content=asset(name))
    yield page
    page.close()


def asked(page, function, *told):
    """Call a function in the page, once for everything; as text, which goes over many times faster than values do."""
    script = f"(text) => JSON.stringify(({function})(...JSON.parse(text)))"
    return json.loads(page.evaluate(script, json.dumps(told)))


AS_MAPS = """(told) => {
  const map = (values) => new Map(Object.entries(values).map(([key, ns]) => [Number(key), ns]));
  return { ...told, compute: map(told.compute), communication: map(told.communication) };
}"""


def test_a_step_under_any_change_is_that_of_the_package(bare):
    rng = np.random.default_rng(8)
    cases = [random_case(rng) for _ in range(CASES)]
    got = asked(
        bare,
        f"(cases) => cases.map(([step, run, change]) => enginesStep(step, run, ({AS_MAPS})(change)))",
        cases,
    )
    for case, one in zip(cases, got, strict=True):
        want = expected(*case)
        assert {key: one[key] for key in want} == want
    assert sum(one["exposed_ns"] > 0 for one in got) > CASES / 4  # the cases are of all sorts
    assert sum(one["hidden_ns"] > 0 for one in got) > CASES / 4
    assert max(one["serial_ns"] for one in got) < 2**53


def test_two_engines_buckets_costs_and_medians_are_those_of_the_package(bare):
    rng = np.random.default_rng(7)
    blocks = [rng.integers(0, 30, (2, int(rng.integers(1, 9)))).tolist() for _ in range(CASES)]
    layouts = [
        [
            rng.integers(1, 60, n := int(rng.integers(1, 30))).tolist(),
            rng.integers(1, 200, int(rng.integers(1, 4))).tolist(),
            rng.integers(0, 3, n).tolist(),
        ]
        for _ in range(CASES)
    ]
    costs = [
        [int(rng.integers(0, 1000)), float(rng.choice([0.5, 0.25, rng.random()])), int(size)]
        for size in rng.integers(1, 1 << 33, CASES)
    ]
    middles = [rng.integers(-50, 50, int(rng.integers(1, 9))).tolist() for _ in range(CASES)]
    caps = [None, 0.1, 1, 2.5, 25, 1024]
    got = asked(
        bare,
        """([blocks, layouts, costs, middles, caps]) => ({
          blocks: blocks.map(([compute, communication]) => {
            const placed = enginesPlace(compute.map(() => 0), compute, compute);
            const { start, finish } = enginesQueue(placed.end, communication);
            return { start, finish, ...enginesSums(placed.start, placed.end, start, finish) };
          }),
          layouts: layouts.map((one) => enginesAssign(...one)),
          costs: costs.map(([latency_ns, ns_per_byte, size]) => enginesCost({ latency_ns, ns_per_byte }, [size])[0]),
          middles: middles.map(enginesMedian),
          limits: caps.map(enginesLimits),
        })""",
        [blocks, layouts, costs, middles, caps],
    )
    for (compute, communication), one in zip(blocks, got["blocks"], strict=True):
        want = two_engines(compute, communication)
        assert (one["start"], one["finish"]) == (want.start.tolist(), want.finish.tolist())
        for name in ("serial", "communication", "total", "tail", "hidden", "exposed"):
            assert one[f"{name}_ns"] == getattr(want, f"{name}_ns")
    assert got["layouts"] == [assign(*one) for one in layouts]
    assert got["costs"] == [int(Cost(a, b).of(np.array([size]))[0]) for a, b, size in costs]
    assert got["middles"] == [int(np.median(values)) for values in middles]
    assert [tuple(one) for one in got["limits"]] == [limits(cap) for cap in caps]


@pytest.mark.parametrize("made_with", [2, None])
def test_every_cap_is_what_the_command_forecasts(bare, made_with):
    run = ddp.run(made_with, steps=4)
    forecast = ddp_forecast([run], (None, *DEFAULT_CAPS_MB))
    got = asked(
        bare,
        """([run, caps]) => whatifAllCaps(run, { ...whatifUnchanged(), cost: run.cost }, caps)""",
        [payload(run)["run"], [cap.cap_mb for cap in forecast.caps]],
    )
    assert [(one["cap"], one["buckets"], one["tail_ns"], one["step_ns"]) for one in got] == [
        (cap.cap_mb, cap.buckets, cap.tail_ns, cap.step_ns) for cap in forecast.caps
    ]
    assert len({one["tail_ns"] for one in got}) > 3


# -- the panel ---------------------------------------------------------------------------------------------------------


def payload(recording):
    return json.loads(json.dumps(whatif_payload([recording], [analyse(recording)])))


@pytest.fixture
def panel(bare):
    """Mount a payload; return the page with the panel alone."""
    errors = []
    bare.on("pageerror", lambda error: errors.append(error))  # noqa: PLW0108 - Playwright marks what it is given

    def mount(data):
        bare.evaluate(
            """(data) => {
              document.body.replaceChildren(element("section", { id: "whatif" }));
              mountWhatif(document.body.firstChild, data, { element, table, scale, duration, size });
            }""",
            data,
        )
        return bare

    yield mount
    assert not errors


def results(page):
    """The table of results: row -> cells."""
    rows = page.eval_on_selector_all(
        ".whatif-results tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )
    return {name: cells for name, *cells in rows}


def test_the_worked_example_and_its_sliders(panel):
    page = panel(payload(profiled()))  # an input that cannot tell: the example stands alone
    assert page.locator("#whatif-step").is_hidden()
    assert "Not of this input: " in page.inner_text(".whatif-about")
    assert results(page)["tail, ms"] == ["1.00", "1.00", "–"]
    assert results(page)["step, ms"][:2] == ["7.00", "7.00"]
    page.select_option("#whatif-source", label="worked example: 2 ms blocks, 4 ms sends")
    assert results(page)["tail, ms"][1] == "8.0"
    assert results(page)["step, ms"][1] == "14.0"
    assert "the queue, not the start, is the limit" not in page.inner_text(".whatif-verdict")
    page.fill("#whatif-communication-2", "1")
    assert "takes 1.00 ms itself: the queue, not the start, is the limit" in page.inner_text(
        ".whatif-verdict"
    )
    # To half the time, by hand: sends of 2, 2, 0.5 ms end at 6.5 ms.
    page.fill("#whatif-communication", "50")
    assert results(page)["tail, ms"] == ["8.00", "0.50", "−7.50"]
    page.click("#whatif-reset")
    assert results(page)["tail, ms"] == ["8.0", "8.0", "–"]


def test_a_slider_moves_the_tail_to_what_the_package_computes(panel):
    data = payload(ddp.run(2))
    run = data["run"]
    page = panel(data)
    step = run["steps"][run["representative"]]
    slider = page.locator("#whatif-communication-slider")
    slider.focus()
    for key, times in (("ArrowRight", 7), ("PageUp", 2), ("ArrowLeft", 3)):
        for _ in range(times):
            page.keyboard.press(key)
    percent = int(slider.input_value())
    assert percent > 104
    assert page.input_value("#whatif-communication") == str(percent)
    change = {
        "compute_permille": 1000,
        "communication_permille": 10 * percent,
        "compute": {},
        "communication": {},
        "cost": None,
        "limits": None,
    }
    shown(page, expected(step, run, change))
    # Set, not typed: the value alone, as assistive software does.
    slider = page.locator("#whatif-compute-slider")
    slider.evaluate("input => { input.value = 40; input.dispatchEvent(new Event('input')); }")
    change["compute_permille"] = 400
    shown(page, expected(step, run, change))
    # A cap: other buckets, at the fitted cost.
    page.fill("#whatif-cap", "3")
    assert page.input_value("#whatif-layout") == "cap"
    assert page.locator("#whatif-timed").is_disabled()
    change |= {"limits": list(limits(3)), "cost": run["cost"]}
    shown(page, expected(step, run, change))
    page.fill("#whatif-rate", "0.5")
    change["cost"] = {"latency_ns": run["cost"]["latency_ns"], "ns_per_byte": 2.0}
    shown(page, expected(step, run, change))
    # A block by itself, in the table.
    page.click("summary >> text=Every block")
    page.fill("#whatif-compute-1", "12.5")
    change["compute"] = {1: 12_500_000}
    shown(page, expected(step, run, change))
    page.click("#whatif-reset")
    shown(page, expected(step, run, {**change, "compute": {}, "limits": None, "cost": None, "compute_permille": 1000,
                                     "communication_permille": 1000}))  # fmt: skip


def shown(page, want):
    """Hold the table to these numbers, as the page writes them."""
    got = results(page)
    names = {"tail, ms": "tail_ns", "step, ms": "step_ns", "exposed, ms": "exposed_ns"}
    names |= {"hidden, ms": "hidden_ns", "communication, ms": "communication_ns"}
    for name, key in names.items():
        assert float(got[name][2].replace(",", "")) == pytest.approx(want[key] / MS, abs=0.0501)
    tail = page.evaluate("ns => ns ? `Tail ${duration(ns)}` : 'No tail'", want["tail_ns"])
    assert tail in page.inner_text(".whatif-verdict")


def test_less_than_the_model_is_off_is_not_told_apart(panel):
    job = Job(steps=9, blocks=(30, 60, 40), sends=(25, 45, 18), forward=70,
              longer={n: 3.0 * n for n in range(9)})  # fmt: skip
    data = payload(job.recording())
    error = data["run"]["error_ns"]
    assert error > MS
    page = panel(data)
    assert page.locator("#whatif-cap").is_hidden()
    assert "No bucket cap can be tried" in page.inner_text(".note")
    page.click("summary >> text=Every block")
    page.fill(
        "#whatif-communication-2",
        str(data["run"]["steps"][4]["service_ns"][2] / MS - 0.9 * error / MS),
    )
    assert results(page)["tail, ms"][3] == "not told apart"
    assert results(page)["step, ms"][3] == "not told apart"
    page.fill(
        "#whatif-communication-2",
        str(data["run"]["steps"][4]["service_ns"][2] / MS - 1.2 * error / MS),
    )
    assert results(page)["tail, ms"][3].startswith("−")


def test_what_is_no_number_changes_nothing_and_is_marked(panel):
    page = panel(payload(ddp.run(2)))
    before = results(page)
    for field, text in (("#whatif-compute", "-5"), ("#whatif-cap", "0"), ("#whatif-rate", "")):
        page.fill(field, text)
        assert page.get_attribute(field, "aria-invalid") == "true"
    assert results(page) == before


def test_names_are_text_and_every_input_has_a_name(panel):
    data = payload(Job(steps=3, bucket_label="<script>alert(1)</script>").recording())
    page = panel(data)
    assert "<script>alert(1)</script> 0" in page.text_content(".whatif-blocks")
    assert page.locator(".whatif script").count() == 0
    nameless = page.eval_on_selector_all(
        ".whatif input, .whatif select",
        "all => all.filter(one => !one.labels.length && !one.getAttribute('aria-label')).map(one => one.id)",
    )
    assert nameless == []


# -- a real run --------------------------------------------------------------------------------------------------------

JOB = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch

    dist.init_process_group("gloo")
    net = nn.Sequential(*[nn.Linear(192, 192) for i in range(12)])
    model = DistributedDataParallel(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    watch = overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",), gradients_every=1, shadow_every=0)
    for _ in range(8):
        model(torch.ones(4, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    dist.destroy_process_group()
"""


@pytest.mark.e2e
def test_the_page_of_a_real_run_asks_what_the_command_forecasts(opened, tmp_path, capsys):
    jobs.run_ranks(JOB, 2, args=[str(tmp_path / "run")], timeout_s=90).check()
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert (
        main(["whatif", str(tmp_path / "run"), "--bucket-cap-mb", "default,0.25,0.5,1", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)["ddp"]
    page = opened(tmp_path / "page.html")
    # The step that is shown: recorded and unchanged are the same.
    for name, (recorded, unchanged, now, change) in results(page).items():
        if name in ("tail, ms", "step, ms"):
            assert recorded == unchanged == now
        assert change == "–"
    page.click("#whatif summary >> text=The same as a table")
    rows = page.eval_on_selector_all(
        ".whatif-caps tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )
    shown = {row[0]: row[1:4] for row in rows}
    for cap in told["caps"]:
        name = (
            "1, then 25 (default)" if cap["bucket_cap_mb"] is None else f"{cap['bucket_cap_mb']:g}"
        )
        buckets, tail, step = shown[name]
        assert int(buckets) == cap["buckets"]
        assert float(tail) == pytest.approx(cap["tail_ns"] / MS, abs=0.0501)
        assert float(step) == pytest.approx(cap["step_ns"] / MS, abs=0.0501)
    page.fill("#whatif-communication", "0")
    for name in ("communication, ms", "hidden, ms", "exposed, ms"):
        assert results(page)[name][2] == "0"
