#!/usr/bin/env python3
"""Reading a run of many ranks: time, memory, and whether both grow with the ranks and with nothing else.

    scripts/bench_ranks.py [--ranks 256 1024 4096] [--steps 100] [--write]

Simulated logs (scripts/make_run.py) in a temporary directory, then `overlapwatch ranks` and `overlapwatch order` on
them, each in a process of its own, workers included. --project adds a size that is not run, from those that were.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _bench

sys.path.insert(0, str(Path(__file__).parent))
from make_run import Shape, make_run

HEAD = [
    "command",
    "ranks × steps",
    "logs",
    "time",
    "ranks/s",
    "CPU a rank",
    "memory",
    "largest worker",
]
MEASURED = """
import json, resource, sys, time
from overlapwatch.commands import main
began = time.perf_counter()
code = main(sys.argv[1:])
took = time.perf_counter() - began
mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = sum(one.ru_utime + one.ru_stime for one in (mine, theirs))
print(json.dumps([code, took, cpu, mine.ru_maxrss, theirs.ru_maxrss]), file=sys.stderr)
"""


@dataclass(frozen=True)
class Cost:
    """What one command cost on one run; memory in kB as the kernel counts it."""

    command: str
    ranks: int
    steps: int
    log_bytes: int
    seconds: float
    cpu_seconds: float
    memory_kb: int
    worker_kb: int

    def row(self) -> list[str]:
        """Return the row of the table."""
        return [
            self.command,
            f"{self.ranks:,} × {self.steps}",
            f"{self.log_bytes / 1e6:,.0f} MB",
            f"{self.seconds:,.1f} s",
            f"{self.ranks / self.seconds:,.0f}",
            f"{self.cpu_seconds / self.ranks * 1e3:.1f} ms",
            f"{self.memory_kb / 1e3:,.0f} MB",
            f"{self.worker_kb / 1e3:,.0f} MB",
        ]

    def projected(self, ranks: int, least: "Cost") -> list[str]:
        """Return the row of a size that was not run: time as the largest had it, memory by a straight line."""
        grown = (ranks - self.ranks) / max(self.ranks - least.ranks, 1)

        def at(low: float, high: float) -> float:
            return high + grown * (high - low)

        seconds = self.seconds * ranks / self.ranks
        memory = max(at(least.memory_kb, self.memory_kb), self.memory_kb)
        return [
            self.command,
            f"{ranks:,} × {self.steps}, projected",
            f"{at(least.log_bytes, self.log_bytes) / 1e6:,.0f} MB",
            f"{seconds:,.0f} s",
            f"{ranks / seconds:,.0f}",
            "",
            f"{memory / 1e3:,.0f} MB",
            "",
        ]


def measure(command: str, directory: Path, ranks: int, steps: int, size: int) -> Cost:
    arguments = [command, str(directory), "--output", "/dev/null"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments],
        env=_bench.environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, cpu, mine, theirs = json.loads(done.stderr.splitlines()[-1])
    if code:
        raise SystemExit(f"overlapwatch {command}: exit code {code}\n{done.stderr}")
    return Cost(command, ranks, steps, size, seconds, cpu, mine, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--project", type=int, default=16_384, help="0: no projection")
    parser.add_argument("--write", action="store_true", help="update docs/performance.md")
    options = parser.parse_args()
    costs: dict[str, list[Cost]] = {"ranks": [], "order": []}
    for ranks in sorted(options.ranks):
        with tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as directory:
            run = Path(directory, "run")
            size = make_run(run, Shape(ranks, options.steps, 8, 4, 12.0, 0.86, 1))
            for command, mine in costs.items():
                mine.append(measure(command, run, ranks, options.steps, size))
                print(*mine[-1].row(), sep="  ", flush=True)
    rows = [one.row() for mine in costs.values() for one in mine]
    largest = max(options.ranks)
    if len(options.ranks) > 1 and options.project > largest:
        rows += [mine[-1].projected(options.project, mine[-2]) for mine in costs.values()]
    text = (
        f"{_bench.machine()}. One run each, the files just written (in the page cache); CPU and memory as "
        "the kernel counts them, memory of the process that adds up. A projected row has the largest run's "
        f"time a rank, and memory on the straight line through the two largest.\n\n{_bench.table(HEAD, rows)}"
    )
    _bench.publish("bench_ranks", "scripts/bench_ranks.py --write", text, write=options.write)


if __name__ == "__main__":
    main()
