"""What the benchmarks share: jobs whose compute is sleep, interleaved contests, ratios with an interval, tables.

A shared machine drifts by more than what is measured here. So everything is a comparison inside one process: blocks of
steps with and without something, in turn, in an order that rotates; and a number is a ratio or a difference of medians
over all blocks, with an interval from resampling whole rounds. Times that have no partner are best times.
"""

import contextlib
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PERFORMANCE = ROOT / "docs" / "performance.md"
RESULT = "OVERLAPWATCH_BENCH_RESULT"


# -- jobs ------------------------------------------------------------------------------------------------------


def run_ranks(
    script: Path, arguments: Sequence[str], world: int, timeout_s: float = 420
) -> list[dict[str, Any]]:
    """Start `world` ranks of a script and return what each handed to `finish`."""
    with tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as directory:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(world):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                RESULT: directory,
            }
            with Path(directory, f"{rank}.err").open("w") as errors:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(script), *arguments],
                        env=environment(variables),
                        stdout=subprocess.DEVNULL,  # step lines are written, and go nowhere
                        stderr=errors,
                    )
                )
        return _results(ranks, directory, timeout_s)


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the environment of a rank: one thread, nothing of ours but what is said here."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OVERLAPWATCH_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}


def _results(
    ranks: list[subprocess.Popen[bytes]], directory: str, timeout_s: float
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + timeout_s
    try:
        for rank in ranks:
            rank.wait(max(deadline - time.monotonic(), 0))
    finally:
        for rank in ranks:
            rank.kill()
    for number, rank in enumerate(ranks):
        if rank.returncode:
            said = Path(directory, f"{number}.err").read_text()
            raise SystemExit(
                f"rank {number} of the benchmark failed with {rank.returncode}:\n{said}"
            )
    return [json.loads(Path(directory, f"{n}.json").read_text()) for n in range(len(ranks))]


def finish(result: dict[str, Any]) -> None:
    """In a rank: hand over the result."""
    place = Path(os.environ[RESULT], f"{os.environ.get('RANK', '0')}.json")
    place.write_text(json.dumps(result))


def sleeping_net(
    blocks: int, features: int, seconds: float, compute: Callable[[float], None] = time.sleep
) -> Any:
    """Return a module of `blocks` linear layers (`features`² float32 weights); the backward of each first computes.

    `compute(seconds)` sleeps: sleep is the only compute whose length a busy machine leaves alone.
    """
    import torch

    class Nap(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, tensor: Any) -> Any:
            return tensor.view_as(tensor)

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            compute(seconds)
            return gradient

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(features, features, bias=False) for _ in range(blocks)]
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, tensor: Any) -> Any:
            for layer in self.layers:
                tensor = Nap.apply(layer(tensor))
            return tensor

    return Net()


# -- contests --------------------------------------------------------------------------------------------------


@dataclass
class Entrant:
    """One way to run the job.

    Args:
        name: of the series.
        step: runs one training step and returns what is measured of it, in seconds.
        attach: what is in force during a block.
        warm_up: steps at the beginning of a block that do not count.
    """

    name: str
    step: Callable[[], float]
    attach: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    warm_up: int = 3
    rounds: list[list[float]] = field(default_factory=list)


def contest(entrants: Sequence[Entrant], rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Run blocks of every entrant in turn; return seconds of each counted step, by entrant and round."""
    for number in range(rounds):
        at = number % len(entrants)
        for entrant in [*entrants[at:], *entrants[:at]]:
            with entrant.attach():
                for _ in range(entrant.warm_up):
                    entrant.step()
                entrant.rounds.append([entrant.step() for _ in range(steps)])
    return {entrant.name: entrant.rounds for entrant in entrants}


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 1, unit: str = "") -> str:
        """Return `1.2 (0.9 to 1.5) us`."""
        return f"{self.value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f}){unit}"


Rounds = list[list[float]]


def ratio_of_medians(series: Rounds, reference: Rounds) -> Estimate:
    """Return median(series) / median(reference)."""
    return _resampled(series, reference, lambda a, b: float(np.median(a) / np.median(b)))


def difference_of_medians(series: Rounds, reference: Rounds) -> Estimate:
    """Return median(series) - median(reference), seconds."""
    return _resampled(series, reference, lambda a, b: float(np.median(a) - np.median(b)))


def _resampled(
    series: Rounds, reference: Rounds, of: Callable[[Any, Any], float], tries: int = 2000
) -> Estimate:
    """Bootstrap over rounds: neighbours in time stay together, steps of one block are not taken for independent."""
    a, b = np.array(series), np.array(reference)
    draw = random.Random(0)
    found = []
    for _ in range(tries):
        rows = [draw.randrange(len(a)) for _ in range(len(a))]
        found.append(of(a[rows], b[rows]))
    low, high = np.percentile(found, [2.5, 97.5])
    return Estimate(of(a, b), float(low), float(high))


def best_ns(bodies: dict[str, Callable[[int], None]], calls: int, rounds: int) -> dict[str, float]:
    """Return the best time of one call in ns, by name. Each body makes `calls` calls; bodies take turns."""
    best = dict.fromkeys(bodies, float("inf"))
    for _ in range(rounds):
        for name, body in bodies.items():
            began = time.perf_counter_ns()
            body(calls)
            best[name] = min(best[name], (time.perf_counter_ns() - began) / calls)
    return best


# -- what is printed -------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    """Return what the numbers were measured on, without naming it."""
    import torch

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return (
        f"{cores} cores ({model}), Python {platform.python_version()}, PyTorch {torch.__version__}, gloo on loopback, "
        f"no GPU; load before the run {load:.1f}"
    )


def publish(name: str, command: str, text: str, *, write: bool) -> None:
    """Print the text; with `write`, put it between the markers of `name` in docs/performance.md as well."""
    print(text)
    if not write:
        return
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = PERFORMANCE.read_text()
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PERFORMANCE.name} has no markers for {name}")
    PERFORMANCE.write_text(f"{before}{begin}\n`{command}`\n\n{text}\n{end}{after}")


def percentiles(values: Sequence[float], digits: int = 2) -> list[str]:
    """Return median, 90th percentile and maximum as text."""
    found = [*np.percentile(values, [50, 90]), max(values)]
    return [f"{value:.{digits}f}" for value in found]


@contextlib.contextmanager
def process_group() -> Iterator[int]:
    """In a rank: the gloo group, and this rank's number."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


median = statistics.median
