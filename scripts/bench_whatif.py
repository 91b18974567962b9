#!/usr/bin/env python3
"""What-if against the truth: real DDP jobs on slow links, each cap measured, and forecast from a run with another cap.

    scripts/bench_whatif.py [--write] [--quick] [--keep DIRECTORY]

For each model and link (two ranks in network namespaces, `tc tbf`; needs root and iproute2) the job is run once with
each cap. From the log of the run with the cap in `FROM` alone every cap is forecast. `--write` puts the tables into
docs/whatif.md. `--keep` leaves logs and measurements in a directory; what is there already is forecast again, not
measured again: for work on the model.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

import _bench
import numpy as np
from _whatif_job import MODELS

from overlapwatch.sources import open_trace
from overlapwatch.whatif.ddp import ddp_forecast
from tests.support.slowlink import slow_link, unavailable

CAPS = (1, 2, 5, 10, 25)
FROM = 5
RATES = (300, 1000, 3000)
BURST_MS = 0.5  # small beside the time of the smallest message, which is 1 to 8 ms here
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
    cases = [(model, rate) for model in MODELS for rate in RATES]
    rows, exposed_off, hits = [], [], 0
    for model, rate in cases[:1] if arguments.quick else cases:
        with contextlib.ExitStack() as stack:
            kept = arguments.keep or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="overlapwatch-bench-"))
            )
            logs = kept / f"{model.replace(' ', '-')}-{rate}"
            measured = measure(model, rate, logs, steps=8 if arguments.quick else 14)
            forecast = ddp_forecast(open_trace(logs / str(FROM)), CAPS)
        truth = {float(cap): told for cap, told in measured.items()}
        caps = {row.cap_mb: row for row in forecast.caps}
        best = min(truth, key=lambda cap: truth[cap]["step_ns"])
        chosen = min(caps, key=lambda cap: caps[cap].step_ns)
        loss = truth[chosen]["step_ns"] / truth[best]["step_ns"] - 1
        hits += chosen == best or loss <= 0.02
        others = [cap for cap in CAPS if cap != FROM]
        off = [
            abs(caps[cap].exposed_ns - truth[cap]["exposed_ns"]) / truth[cap]["exposed_ns"]
            for cap in others
        ]
        step_off = [abs(caps[cap].step_ns / truth[cap]["step_ns"] - 1) for cap in others]
        exposed_off += off
        rows.append(
            [
                model,
                f"{rate}",
                f"{best:g}",
                f"{chosen:g}",
                f"{100 * loss:.1f} %",
                ", ".join(f"{truth[cap]['exposed_ns'] / 1e6:.0f}" for cap in CAPS),
                ", ".join(f"{caps[cap].exposed_ns / 1e6:.0f}" for cap in CAPS),
                f"{100 * np.median(off):.0f} % ({100 * max(off):.0f} %)",
                f"{100 * np.median(step_off):.1f} % ({100 * max(step_off):.1f} %)",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    head = [
        "model",
        "link, Mbit/s",
        "best cap",
        "forecast best",
        "step lost by it",
        f"exposed measured, ms (caps {', '.join(map(str, CAPS))})",
        "exposed forecast, ms",
        "exposed off by: median (worst)",
        "step off by: median (worst)",
    ]
    within = sum(off <= 0.15 for off in exposed_off)
    text = _bench.table(head, rows) + (
        f"\n\nBest cap found, or within 2 % of the best step: {hits} of {len(rows)} cases. Exposed time within 15 %: "
        f"{within} of {len(exposed_off)} forecasts, median off by {100 * np.median(exposed_off):.0f} %. All forecast "
        f"from the run with {FROM} MiB.\n"
    )
    print(text)
    if arguments.write:
        begin, end = "<!-- bench_whatif: begin -->", "<!-- bench_whatif: end -->"
        page = PAGE.read_text()
        before, after = page.split(begin)[0], page.split(end)[1]
        PAGE.write_text(f"{before}{begin}\n{text}{end}{after}")
    return 0


def measure(model: str, rate: float, logs: Path, steps: int) -> dict[str, dict[str, int]]:
    """Run every cap, leaving the logs in a directory of each; what was measured before is read again."""
    result = logs / "measured.json"
    if not result.exists():
        with slow_link(2, rate, BURST_MS) as link:
            ran = link.run_ranks(
                Path(__file__).with_name("_whatif_job.py"),
                args=[logs, model, ",".join(map(str, CAPS)), str(steps)],
                timeout_s=900,
            ).check()
        result.write_text(ran.stdout.splitlines()[-1])
    return json.loads(result.read_text())


if __name__ == "__main__":
    sys.exit(main())
