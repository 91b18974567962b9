#!/usr/bin/env python3
"""What a watch costs: an event, a bucket, a step, memory, log bytes, the drain. Every number stands beside its floor.

    scripts/bench_record.py [--quick] [--write] [--traceml]

--write puts the table into docs/performance.md; --traceml installs `traceml-ai` into an environment of its own (which
sees this one's PyTorch) and runs the same job under it. About 6 minutes; --quick shows in one that everything runs, and
its numbers mean nothing.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import _bench
from _bench import Estimate, Rounds, difference_of_medians, ratio_of_medians

JOBS = Path(__file__).with_name("_bench_record_jobs.py")
ONE_PERCENT_HALF = 0.005
HEAD = ["what", "measured", "beside it", "ratio or difference"]
Row = list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny counts: to see that it runs")
    parser.add_argument("--write", action="store_true", help="update docs/performance.md")
    parser.add_argument("--traceml", action="store_true", help="install and compare traceml-ai")
    options = parser.parse_args()
    facts, quick = _bench.machine(), options.quick
    began = time.monotonic()
    rows = [
        *event_rows(job("events", 1, *(3, 2000) if quick else (25, 20_000))),
        *bucket_rows(job("small_buckets", 1, *(2, 2) if quick else (12, 20)), "1 KB, 1 rank"),
        *bucket_rows(job("sleeping_buckets", 2, *(2, 2) if quick else (12, 15)), "64 KB, 2 ranks"),
        *step_rows(job("whole_steps", 2, *(2, 2) if quick else (20, 10)), "10 buckets of 1 MB"),
        *step_rows(
            job("steps_as_ddp_buckets", 2, *(2, 2) if quick else (20, 10)), "DDP's own 2 buckets"
        ),
    ]
    if options.traceml:
        rows += traceml_rows(*(2, 2) if quick else (10, 10))
    rows += footprint_rows(job("footprint", 1, *(1, 20) if quick else (1, 100)))
    rows += window_rows(job("kernel_windows", 1, *(3, 0) if quick else (20, 0)))
    rows += import_rows(2 if quick else 5)
    took = time.monotonic() - began
    text = f"{facts}; {took:.0f} s. {LEGEND}\n\n{_bench.table(HEAD, rows)}"
    command = "scripts/bench_record.py --write" + " --traceml" * options.traceml
    _bench.publish("bench_record", command, text, write=options.write)


LEGEND = (
    "Events and imports: best times. Everything else: medians over interleaved blocks, in parentheses the 95 % "
    "interval from resampling rounds."
)


def job(name: str, world: int, rounds: int, steps: int) -> dict[str, Any]:
    """Run one job and return rank 0's result."""
    return _bench.run_ranks(JOBS, [name, str(rounds), str(steps)], world)[0]


def event_rows(best: dict[str, float]) -> list[Row]:
    floor = best["floor"]
    beside = f"{floor:.0f} ns: `perf_counter_ns` and `Struct.pack_into`"
    words = {
        "ring": "one event: clock and `ring.write`",
        "launch": "one event: a collective's launch",
        "begin": "one event: the beginning of a span",
        "span": "two events: beginning and end of a span",
    }
    return [
        [text, f"{best[name]:.0f} ns", beside, f"{best[name] / floor:.2f} ×"]
        for name, text in words.items()
    ]


def bucket_rows(result: dict[str, Any], where: str) -> list[Row]:
    rounds, buckets = result["rounds"], result["buckets"]
    pairs = (
        ("passive, over DDP's built-in path", "built-in, passive", "built-in"),
        (
            "attached but not recording (a shadow step), over that path",
            "built-in, shadow",
            "built-in",
        ),
        ("passive, over a Python all-reduce hook", "python hook, passive", "python hook"),
        ("hook mode, over a Python all-reduce hook", "hook mode", "python hook"),
        ("hook mode, over DDP's built-in path", "hook mode", "built-in"),
        ("for scale: a Python all-reduce hook, over that path", "python hook", "built-in"),
    )
    rows = []
    for text, series, reference in pairs:
        added = difference_of_medians(rounds[series], rounds[reference])
        each = [1e6 * part / buckets for part in (added.value, added.low, added.high)]
        rows.append(
            [
                f"per bucket of {where}: {text}",
                f"{1e3 * middle(rounds[series]):.2f} ms a backward",
                f"{1e3 * middle(rounds[reference]):.2f} ms",
                Estimate(*each).text(1, " µs a bucket"),
            ]
        )
    return rows


def middle(rounds: Rounds) -> float:
    return _bench.median([second for block in rounds for second in block])


def step_rows(result: dict[str, Any], buckets: str) -> list[Row]:
    rounds = result["rounds"]
    words = {
        "watched": f"step of 2 ranks, {buckets}, watched, log and step lines on",
        "unwatched again": "the noise: the same job, unwatched twice",
        "torch.profiler": "the same job under `torch.profiler`, recording 3 of 4 steps, nothing exported",
    }
    noise = ratio_of_medians(rounds["unwatched again"], rounds["unwatched"])
    rows = [
        paired(text, rounds[name], rounds["unwatched"])
        for name, text in words.items()
        if name in rounds
    ]
    watched = ratio_of_medians(rounds["watched"], rounds["unwatched"])
    within = abs(watched.value - 1) <= ONE_PERCENT_HALF
    inside = noise.low <= watched.value <= noise.high
    steps = sum(map(len, rounds["watched"]))
    rows[0][0] += f" ({steps} pairs; within 0.5 %: {yes(within)}; inside the noise: {yes(inside)})"
    return rows


def paired(text: str, series: Rounds, reference: Rounds) -> Row:
    ratio = ratio_of_medians(series, reference)
    ms = [f"{1e3 * middle(rounds):.2f} ms" for rounds in (series, reference)]
    return [text, *ms, ratio.text(4, " ×")]


def yes(answer: bool) -> str:
    return "yes" if answer else "no"


def traceml_rows(rounds: int, steps: int) -> list[Row]:
    """Run the same job under TraceML. Why it could not be run is a row too."""
    text = "the same job under TraceML {} (`traceml run`), inside `trace_step` and outside of it"
    with tempfile.TemporaryDirectory(prefix="overlapwatch-traceml-") as place:
        try:
            version, result = run_traceml(Path(place), rounds, steps)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
            said = getattr(error, "stderr", None) or str(error)
            reason = (said.decode() if isinstance(said, bytes) else said).strip().splitlines()[-1]
            return [[text.format("").replace("  ", " "), "could not be run", "", reason]]
    series = result["rounds"]
    return [paired(text.format(version), series["traced"], series["untraced"])]


def run_traceml(place: Path, rounds: int, steps: int) -> tuple[str, dict[str, Any]]:
    home, results = place / "env", place / "results"
    results.mkdir()
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"

    def run(*command: object, **options: Any) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, check=True, capture_output=True, timeout=300, **options)
        return done.stdout.decode().strip()

    run(python, "-m", "pip", "install", "--quiet", "traceml-ai")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    Path(run(python, "-c", ask), "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ask = "import importlib.metadata as m; print(m.version('traceml-ai'))"
    version = run(python, "-c", ask)
    command = [home / "bin" / "traceml", "run", JOBS, "--nproc-per-node", "2"]
    command += ["--logs-dir", place / "logs"]
    command += ["--args", "traceml", str(rounds), str(steps)]
    variables = {_bench.RESULT: str(results), "PATH": f"{home / 'bin'}:/usr/bin:/bin"}
    run(*command, env=_bench.environment(variables), cwd=place)
    return version, json.loads((results / "0.json").read_text())


def footprint_rows(result: dict[str, Any]) -> list[Row]:
    buckets = f"{result['buckets']} buckets a step"
    return [
        ["resident memory added by a watch", f"{result['resident_bytes'] / 1e6:.1f} MB", "", ""],
        ["`watch()` itself", f"{1e3 * result['attach_s']:.0f} ms", "", ""],
        [f"log, a step kept whole ({buckets})", f"{result['kept_step_bytes']:.0f} bytes", "", ""],
        [
            f"log, by default beyond step 50 ({buckets})",
            f"{result['step_bytes']:.0f} bytes a step",
            "",
            "",
        ],
        [f"drain thread ({buckets})", f"{result['drain_ns'] / 1e6:.2f} ms CPU a step", "", ""],
        [
            "drain thread with nothing to do",
            f"{result['idle_ns'] / 1e6:.1f} ms CPU a second",
            "",
            "",
        ],
    ]


def window_rows(result: dict[str, Any]) -> list[Row]:
    events = result["events"]
    where = f"a kernel-level window of {events:.0f} events"
    return [
        [f"{where}: to start, on the training thread", f"{1e3 * result['open_s']:.2f} ms", "", ""],
        [
            f"{where}: to stop, on the training thread",
            f"{1e3 * result['close_s']:.1f} ms",
            "",
            f"{1e6 * result['close_s'] / events:.1f} µs an event",
        ],
        [
            f"{where}: to read, on the drain thread",
            f"{1e3 * result['read_s']:.1f} ms",
            "",
            f"{1e6 * result['read_s'] / events:.1f} µs an event",
        ],
        [f"{where}: bound of its clock's error", f"{result['error_ns'] / 1e3:.1f} µs", "", ""],
    ]


def import_rows(times: int) -> list[Row]:
    """Time fresh interpreters; their start without us is the floor."""
    pairs = (
        ("`import overlapwatch`", "pass", "import overlapwatch"),
        (
            "`overlapwatch.watch`, PyTorch's DDP imported already",
            "import torch.nn.parallel, torch.distributed",
            "import torch.nn.parallel, torch.distributed, overlapwatch; overlapwatch.watch",
        ),
    )
    rows = []
    for text, without, with_ours in pairs:
        pairs_s = [(start_s(without), start_s(with_ours)) for _ in range(times)]
        floor, ours = (min(column) for column in zip(*pairs_s, strict=True))
        rows.append(
            [
                text,
                f"{1e3 * ours:.0f} ms",
                f"{1e3 * floor:.0f} ms without",
                f"{1e3 * (ours - floor):+.0f} ms",
            ]
        )
    return rows


def start_s(code: str) -> float:
    """Run a line in a fresh interpreter; return the seconds until it is gone."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=_bench.environment({}))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
