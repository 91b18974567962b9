#!/usr/bin/env python3
"""What reading a profile costs: large Nsight Systems exports and Kineto traces, beside bare scans and other tools.

    scripts/bench_sources.py [--quick] [--write] [--trace FILE]

Peers are installed from PyPI into `.venv-peers-*`, each in an environment of its own. --write puts the table into
docs/performance.md. About 12 minutes and 3 GB of temporary files on an otherwise idle machine; --quick has a 50th of
the size, shows in two minutes that everything runs, and its numbers mean nothing.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import _bench
import numpy as np
from _bench_sources_data import CALLS, DEVICES, KERNELS, NEEDED
from _bench_sources_run import Ran, child, python_of, report, report_one_process, run, written

HEAD = ["what", "measured", "beside it", "ratio", "aim"]
Row = list[str]


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    kernels: int = 5_000_000
    line: tuple[int, ...] = (500_000, 1_000_000, 10_000_000)
    trace_mb: int = 500
    files_kernels: int = 2_000_000
    files_mb: int = 500
    rounds: int = 3


QUICK = Sizes(100_000, (20_000, 50_000, 200_000), 10, 100_000, 10, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a 50th of the size: to see it run")
    parser.add_argument("--write", action="store_true", help="update docs/performance.md")
    parser.add_argument("--trace", type=Path, help="the Kineto trace to repeat")
    parser.add_argument("--kineto", action="store_true", help="only the rows of Kineto traces")
    options = parser.parse_args()
    if options.kineto and options.write:
        parser.error("--kineto prints a part of the table, which --write would put in place of all")
    sizes = QUICK if options.quick else Sizes()
    for peer in (
        ("hta", "traceinsight") if options.kineto else ("readers", "nsysai", "hta", "traceinsight")
    ):
        python_of(peer)
    facts, began = machine(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as directory:
        place = Path(directory)
        home = place / "home"
        home.mkdir()
        rows = [
            *([] if options.kineto else nsight_rows(place, home, sizes)),
            *kineto_rows(place, home, sizes, options.trace),
        ]
    took = time.monotonic() - began
    text = f"{facts}; {took:.0f} s. {LEGEND}\n\n{_bench.table(HEAD, rows)}"
    _bench.publish("sources", "scripts/bench_sources.py --write", text, write=options.write)


LEGEND = (
    "Medians of whole commands, start of Python and text of the report included; scans without the start of Python. "
    "Memory: the largest resident set of a process. s CPU: user and system time of all processes. Modules are "
    "compiled, as an installation leaves them."
)


def machine() -> str:
    """Return what the numbers were measured on, without naming it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((one.partition(":")[2].strip() for one in lines if "model name" in one), model)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return (
        f"{cores} cores ({model}), Python {platform.python_version()}, numpy {np.__version__}; "
        f"load before the run {load:.1f}"
    )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def in_turn(rounds: int, *entrants: Callable[[], Ran]) -> list[list[Ran]]:
    """Run each of the entrants once a round, in an order that rotates; return the runs of each."""
    runs: list[list[Ran]] = [[] for _ in entrants]
    for number in range(rounds):
        for at in range(len(entrants)):
            place = (at + number) % len(entrants)
            runs[place].append(entrants[place]())
    return runs


def wall(runs: Sequence[Ran]) -> float:
    return statistics.median(one.seconds for one in runs)


def cpu(runs: Sequence[Ran]) -> float:
    return statistics.median(one.cpu_seconds for one in runs)


def inner(runs: Sequence[Ran]) -> float:
    return statistics.median(float(one.told["seconds"]) for one in runs)


def peak(runs: Sequence[Ran]) -> float:
    return max(one.peak_mb for one in runs)


def times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"


# -- Nsight Systems ----------------------------------------------------------------------------------------------


def nsight_rows(place: Path, home: Path, sizes: Sizes) -> list[Row]:
    rows, line = [], {}
    for kernels in sizes.line[:-1]:
        line[kernels], path = one_of_the_line(place, home, kernels, sizes.rounds)
        if kernels == sizes.line[-2]:
            rows += reader_rows(path, home)
        path.unlink()
    path = place / "profile.sqlite"
    say(f"writing {sizes.kernels:,} kernels")
    kernels = written("export", path, sizes.kernels)["kernels"]
    scanned, line[kernels] = scan_rows(path, home, kernels, sizes.rounds)
    rows += scanned
    rows += nsys_ai_rows(path, home, wall(line[kernels]), peak(line[kernels]))
    path.unlink()
    last = sizes.line[-1]
    line[last], path = one_of_the_line(place, home, last, 2)
    path.unlink()
    rows += line_rows(line)
    say("8 exports")
    written("exports", place / "files", sizes.files_kernels)
    paths = sorted((place / "files").iterdir())
    rows.append(files_row(f"8 exports, {sizes.files_kernels / 1e6:g} M kernels", paths, home))
    shutil.rmtree(place / "files")
    return rows


def one_of_the_line(place: Path, home: Path, kernels: int, rounds: int) -> tuple[list[Ran], Path]:
    path = place / f"profile-{kernels}.sqlite"
    say(f"writing {kernels:,} kernels")
    written("export", path, kernels)
    say("reports of it")
    return [report([path], home) for _ in range(rounds)], path


READERS = (
    ("sqlite3, the standard library", "sqlite3", {}),
    ("ADBC", "adbc", {}),
    ("ADBC, cut by row number, 2 threads", "adbc", {"parts": 2}),
    ("connectorx", "connectorx", {}),
    ("connectorx, 2 partitions", "connectorx", {"parts": 2}),
    ("DuckDB's sqlite_scan", "duckdb", {}),
)


def reader_rows(path: Path, home: Path) -> list[Row]:
    """Find out which reader is the fastest."""
    say("bare scans by several readers")
    found = {}
    for name, what, options in READERS:
        runs = [child("readers", what, path, home, tables=NEEDED, **options) for _ in range(2)]
        found[name] = min(float(one.told["seconds"]) for one in runs)
    best = min(found, key=found.__getitem__)
    others = ", ".join(f"{name} {found[name]:.2f} s" for name in found if name != best)
    size = int(path.stem.partition("-")[2])
    text = f"bare scan of kernels and calls, {size / 1e6:.3g} M kernels"
    return [[text, f"{best} {found[best]:.2f} s", others, "", "which is the fastest"]]


def scan_rows(path: Path, home: Path, kernels: int, rounds: int) -> tuple[list[Row], list[Ran]]:
    say("reports and bare scans in turn")
    only = {KERNELS: NEEDED[KERNELS]}
    ours, one, both, cut = in_turn(
        rounds,
        lambda: report([path], home),
        lambda: child("readers", "adbc", path, home, tables=only),
        lambda: child("readers", "adbc", path, home, tables=NEEDED),
        lambda: child("readers", "adbc", path, home, tables=NEEDED, parts=2),
    )
    size = f"{kernels / 1e6:.1f} M kernels, {path.stat().st_size / 1e6:,.0f} MB"
    mine = f"{wall(ours):.1f} s ({cpu(ours):.1f} s CPU), {peak(ours):,.0f} MB"
    names = {
        "kernels only": one,
        f"{KERNELS.rpartition('_')[2].lower()}s and {CALLS.rpartition('_')[2].lower()} calls": both,
        "the same, cut for both cores": cut,
    }
    rows = [
        [
            f"report of {size}",
            mine,
            f"bare ADBC scan, {name}: {inner(runs):.1f} s",
            times(wall(ours) / inner(runs)),
            "≤ 2×",
        ]
        for name, runs in names.items()
    ]
    return rows, ours


def nsys_ai_rows(path: Path, home: Path, ours: float, our_peak: float) -> list[Row]:
    """Compare with nsys-ai's overlap skill, on a copy: it writes beside its input, at times into it."""
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    size = copy.stat().st_size
    child("nsysai", "nsys_ai_extension", copy, home)
    program = str(Path(python_of("nsysai")).with_name("nsys-ai"))

    def skill(device: int, *more: str) -> Ran:
        options = ["-p", f"device={device}", "--format", "json", *more]
        return run([program, "skill", "run", "overlap_breakdown", str(copy), *options], home)

    say("nsys-ai, first command")
    first, *others = [skill(device) for device in DEVICES]
    say("nsys-ai, without its cache")
    bare = [skill(device, "--no-cache") for device in DEVICES]
    say("nsys-ai, warm")
    warm = [skill(device) for device in DEVICES]
    together = child("nsysai", "nsys_ai_warm", copy, home, devices=list(DEVICES))
    agreed = same_overlap(path, home, [json.loads(one.output)[0]["overlap_ms"] for one in warm])
    added = (
        copy.stat().st_size
        - size
        + sum(
            one.stat().st_size for one in copy.parent.glob("copy.nsys-cache/**/*") if one.is_file()
        )
    )
    copy.unlink()
    shutil.rmtree(copy.with_suffix(".nsys-cache"), ignore_errors=True)
    whole = first.seconds + sum(one.seconds for one in others)
    told = (
        ("first command and the 7 after it", whole, peak([first, *others])),
        ("without its cache, 8 commands", sum(one.seconds for one in bare), peak(bare)),
        ("its cache being there, 8 commands", sum(one.seconds for one in warm), peak(warm)),
        ("its cache being there, one process", together.seconds, together.peak_mb),
    )
    rows = [
        [
            f"nsys-ai 0.3.0, overlap of 8 devices, {name}",
            f"{ours:.1f} s, {our_peak:,.0f} MB (the whole report)",
            f"{seconds:.1f} s, {memory:,.0f} MB",
            times(seconds / ours),
            "≥ 15×",
        ]
        for name, seconds, memory in told
    ]
    rows[0][2] += f"; first command alone {first.seconds:.1f} s"
    rows.append(
        [
            "the same overlap, all devices",
            "yes" if agreed else "**no**",
            f"nsys-ai wrote {added / 1e6:,.0f} MB in or beside its input; we write nothing",
            "",
            "yes",
        ]
    )
    return rows


def same_overlap(path: Path, home: Path, theirs_ms: list[float]) -> bool:
    told = json.loads(report([path], home, "--json").output)
    ours = [one["partition"]["overlap_ns"] for one in told["timelines"]]
    return len(ours) == len(theirs_ms) and all(
        abs(mine / 1e6 - other) <= 0.0051 for mine, other in zip(ours, theirs_ms, strict=True)
    )


def line_rows(line: dict[int, list[Ran]]) -> list[Row]:
    """Say whether the cost grows with the number of kernels alone: by the last stretch and the whole."""
    sizes = sorted(line)
    found = {size: cpu(line[size]) for size in sizes}
    text = ", ".join(f"{size / 1e6:.3g} M {wall(line[size]):.1f} s" for size in sizes)
    low, middle, high = sizes[0], sizes[-2], sizes[-1]
    slopes = [(found[b] - found[a]) / (b - a) * 1e6 for a, b in ((low, middle), (middle, high))]
    memory = ", ".join(f"{peak(line[size]) / size * 1e6:,.0f}" for size in sizes)
    return [
        [
            f"CPU time of one more kernel, {middle / 1e6:.3g} M to {high / 1e6:.3g} M",
            f"{slopes[1]:.2f} µs",
            f"{slopes[0]:.2f} µs, {low / 1e6:.3g} M to {middle / 1e6:.3g} M; {text}",
            times(slopes[1] / slopes[0]),
            "1×",
        ],
        [
            "memory, MB for each M kernels",
            memory,
            ", ".join(f"{s / 1e6:.3g} M" for s in sizes),
            "",
            "",
        ],
    ]


def files_row(name: str, paths: list[Path], home: Path) -> Row:
    together, alone = in_turn(
        2, lambda: report(paths, home), lambda: report_one_process(paths, home)
    )
    return [
        name,
        f"{wall(together):.1f} s, {cpu(together) / wall(together):.1f} cores busy",
        f"one process: {wall(alone):.1f} s, {cpu(alone) / wall(alone):.1f} cores busy",
        times(wall(alone) / wall(together)),
        "both cores",
    ]


# -- Kineto ------------------------------------------------------------------------------------------------------


def kineto_rows(place: Path, home: Path, sizes: Sizes, given: Path | None) -> list[Row]:
    options = [str(given)] if given else []
    path = place / "trace.json"
    say(f"writing a trace of {sizes.trace_mb} MB")
    made = written("trace", path, sizes.trace_mb, *options)
    say("reports of it")
    ours = [report([path], home) for _ in range(sizes.rounds)]
    told = json.loads(report([path], home, "--json").output)["timelines"][0]
    size = path.stat().st_size / 1e6
    mine = f"{wall(ours):.1f} s ({cpu(ours):.1f} s CPU), {peak(ours):,.0f} MB"
    rows = []
    for peer, title in (("hta", "HTA 0.5.0"), ("traceinsight", "traceinsight 0.6.1")):
        say(title)
        theirs = child(peer, "hta", path, home, rank=told["rank"] or 0)
        found, compute_us = theirs.told, told["partition"]["compute_ns"] / 1e3
        equal = f"compute {found['compute_us']:,.0f} µs, ours {compute_us:,.0f} µs"
        rows += [
            [
                f"{title}, {made['count']} × {made['name']}, {size:,.0f} MB",
                mine,
                f"{theirs.seconds:.1f} s (imports {found['import_seconds']:.1f} s); {equal}",
                times(theirs.seconds / wall(ours)),
                "≥ 20×",
            ],
            [
                f"{title}, memory",
                f"{peak(ours):,.0f} MB",
                f"{theirs.peak_mb:,.0f} MB",
                times(theirs.peak_mb / peak(ours)),
                "≥ 10×",
            ],
        ]
    path.unlink()
    say("8 traces")
    written("traces", place / "traces", sizes.files_mb, *options)
    paths = sorted((place / "traces").iterdir())
    rows.append(
        files_row(f"8 traces, {sum(p.stat().st_size for p in paths) / 1e6:,.0f} MB", paths, home)
    )
    shutil.rmtree(place / "traces")
    return rows


if __name__ == "__main__":
    main()
