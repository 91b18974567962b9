#!/usr/bin/env python3
"""What-if against the truth: real FSDP2 jobs on slow links, each setting measured, and forecast from one run alone.

    scripts/bench_whatif_fsdp2.py [--write] [--quick] [--keep DIRECTORY]

For each model and link (two ranks in network namespaces, `tc tbf`; needs root and iproute2) the job is run once with
each setting. From the log of the run with the setting in `FROM` alone every setting is forecast. `--write` puts the
tables into docs/whatif.md. `--keep` leaves logs and measurements in a directory; what is there already is forecast
again, not measured again: for work on the model. About five minutes; nothing else should run meanwhile.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import _bench
import numpy as np

from overlapwatch.sources import open_trace
from overlapwatch.whatif.fsdp2 import fsdp2_forecast
from tests.support.slowlink import slow_link, unavailable

SETTINGS = ("0-0-True", "1-0-True", "2-2-True", "3-3-True", "0-0-False", "2-0-False")
FROM = "0-0-True"
CASES = (("equal", 300), ("equal", 150), ("heavy in the middle", 300), ("uneven", 300))
STEPS = 7
BURST_MS = 0.5  # small beside the time of the smallest message of a block, which is 28 ms here
PAGE = _bench.ROOT / "docs" / "whatif.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/whatif.md")
    parser.add_argument("--quick", action="store_true", help="one case: shows that it runs")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep the logs; reuse those that are there"
    )
    arguments = parser.parse_args()
    if (reason := unavailable()) is not None:
        sys.exit(f"no slow link can be made here: {reason}")
    rows, step_off, exposed_off, same_memory, hits = [], [], [], 0, 0
    cases = CASES[:1] if arguments.quick else CASES
    for model, rate in cases:
        with contextlib.ExitStack() as stack:
            kept = arguments.keep or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="overlapwatch-bench-"))
            )
            logs = kept / f"{model.replace(' ', '-')}-{rate}"
            truth = measure(model, rate, logs, 5 if arguments.quick else STEPS)
            forecast = fsdp2_forecast(open_trace(logs / FROM))
        said = {name(row): row for row in forecast.settings}
        best = min(SETTINGS, key=lambda one: truth[one]["step_ns"])
        chosen = min(SETTINGS, key=lambda one: said[one].step_ns)
        loss = truth[chosen]["step_ns"] / truth[best]["step_ns"] - 1
        hit = chosen == best or loss <= 0.02
        hits += hit
        for setting in SETTINGS:
            told, seen = said[setting], truth[setting]
            step = told.step_ns / seen["step_ns"] - 1
            exposed = told.exposed_ns / seen["exposed_ns"] - 1
            if setting != FROM:
                step_off.append(abs(step))
                exposed_off.append(abs(exposed))
            same_memory += told.peak_bytes == seen["peak_bytes"]
            forward, backward, reshard = setting.split("-")
            mark = (
                ("measured best" if setting == best else "")
                + (", " if setting == best == chosen else "")
                + ("forecast best" if setting == chosen else "")
            )
            rows.append(
                [
                    f"{model}, {rate} Mbit/s",
                    f"{forward}, {backward}, {'yes' if reshard == 'True' else 'no'}",
                    ms(seen["step_ns"]),
                    f"{ms(told.step_ns)} ({100 * step:+.1f} %)",
                    ms(seen["exposed_ns"]),
                    f"{ms(told.exposed_ns)} ({100 * exposed:+.0f} %)",
                    f"{ms(seen['tail_ns'])}, {ms(told.tail_ns)}",
                    f"{mb(seen['peak_bytes'])}, {mb(told.peak_bytes)}",
                    mark,
                ]
            )
            print(*rows[-1], sep=" | ", flush=True)
    head = [
        "model and link",
        "forward, backward, reshard",
        "step, ms",
        "forecast",
        "exposed, ms",
        "forecast",
        "tail: measured, forecast, ms",
        "held: measured, forecast, MB",
        "",
    ]
    within = sum(off <= 0.15 for off in exposed_off)
    text = _bench.table(head, rows) + (
        f"\n\nBest of these settings found, or within 2 % of the best step: {hits} of {len(cases)} cases. Step off by "
        f"{100 * np.median(step_off):.1f} % (median; worst {100 * max(step_off):.1f} %), exposed time by "
        f"{100 * np.median(exposed_off):.0f} % (worst {100 * max(exposed_off):.0f} %; within 15 %: {within} of "
        f"{len(exposed_off)}); the most held at once is equal in {same_memory} of {len(rows)}. All forecast from the "
        f"run with PyTorch's defaults, whose own rows are not counted among the errors.\n"
    )
    print(text)
    if arguments.write:
        begin, end = "<!-- bench_whatif_fsdp2: begin -->", "<!-- bench_whatif_fsdp2: end -->"
        page = PAGE.read_text()
        before, after = page.split(begin)[0], page.split(end)[1]
        PAGE.write_text(f"{before}{begin}\n{text}{end}{after}")
    return 0


def ms(ns: int) -> str:
    return f"{ns / 1e6:,.0f}"


def mb(count: int) -> str:
    return f"{count / 1e6:.1f}"


def name(row: object) -> str:
    return f"{row.forward_prefetch}-{row.backward_prefetch}-{row.reshard_after_forward}"


def measure(model: str, rate: float, logs: Path, steps: int) -> dict:
    """Measure every setting, each under a directory of its own; return what each had."""
    result = logs / "measured.json"
    if not result.exists():
        with slow_link(2, rate, BURST_MS) as link:
            ran = link.run_ranks(
                Path(__file__).with_name("_whatif_fsdp2_job.py"),
                args=[str(logs), model, ",".join(SETTINGS), str(steps)],
                timeout_s=400,
            ).check()
        result.write_text(ran.stdout.splitlines()[-1])
    return json.loads(result.read_text())


if __name__ == "__main__":
    sys.exit(main())
