"""The measured side of `bench_record.py`: one function for each job, run in processes of its own.

    _bench_record_jobs.py JOB ROUNDS STEPS

A job hands a dict of plain numbers to `_bench.finish`. Attaching a watch and closing it again happens between blocks of
steps; passive mode leaves DDP's reducer alone, so the blocks without it run exactly what runs under it.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import _bench

SMALL_BUCKETS, SMALL_FLOATS = 200, 256
SLEEPING_BUCKETS, SLEEPING_FEATURES, SLEEP_S = 16, 128, 0.0015
STEP_BLOCKS, STEP_FEATURES, STEP_SLEEP_S, STEP_BATCH = 10, 512, 0.009, 64
MB = 1 << 20


# -- one event -------------------------------------------------------------------------------------------------


def events(rounds: int, calls: int) -> dict[str, Any]:
    """Best ns of one call: the floor, and what the recorder does."""
    import mmap

    from overlapwatch.ring.layout import SLOT_STRUCT
    from overlapwatch.vocabulary import CollectiveKind, Phase, RecordKind

    recorder = make_recorder()
    pack, now, write = SLOT_STRUCT.pack_into, time.perf_counter_ns, recorder.ring.write
    buffer = mmap.mmap(-1, 1 << 20)
    kind, phase = RecordKind.PHASE, Phase.BACKWARD
    begin, end, launch, all_reduce = (
        recorder.begin,
        recorder.end,
        recorder.launch,
        CollectiveKind.ALL_REDUCE,
    )

    def floor(count: int) -> None:
        for _ in range(count):
            pack(buffer, 4096, 7, 2, 2, 0, 0, 9, 5, 1, 0, 3, 0, 0, 0, 0, now(), 0, 7)

    def ring(count: int) -> None:
        for _ in range(count):
            write(2, 2, 0, 0, 9, 5, 1, 0, 3, 0, 0, 0, 0, now(), 0)

    def started(count: int) -> None:
        for _ in range(count):
            begin(kind, phase, 5)

    def span(count: int) -> None:
        for _ in range(count):
            end(begin(kind, phase, 5))

    def launched(count: int) -> None:
        for _ in range(count):
            launch(all_reduce, 5, 1, 3, 4096, 1, now())

    bodies = {"floor": floor, "ring": ring, "begin": started, "span": span, "launch": launched}
    best = _bench.best_ns(bodies, calls, rounds)
    recorder.ring.close(remove=True)
    return best


def make_recorder() -> Any:
    """Return a recorder as a watch makes one, without hooks and drain."""
    import os

    from overlapwatch.hooks.names import Names
    from overlapwatch.hooks.recorder import Guard, Recorder
    from overlapwatch.hooks.times import HostTimes
    from overlapwatch.ring import Ring, default_directories

    ring, _ = Ring.create(f"bench-{os.getpid()}.owring", 1 << 16, default_directories(), {})
    return Recorder(ring, Names(), HostTimes(time.perf_counter_ns, ring), Guard())


# -- what a bucket costs ---------------------------------------------------------------------------------------


def small_buckets(rounds: int, steps: int) -> dict[str, Any]:
    """One process, 200 buckets of 1 KB: seconds of each backward, by entrant and round."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            ones = [torch.nn.Parameter(torch.ones(SMALL_FLOATS)) for _ in range(SMALL_BUCKETS)]
            self.parts = torch.nn.ParameterList(ones)

        def forward(self, tensor: Any) -> Any:
            return sum((part * tensor).sum() for part in self.parts)

    with _bench.process_group():
        result = bucket_contest(Net, torch.ones(SMALL_FLOATS), SMALL_FLOATS * 4 / MB, rounds, steps)
    return {**result, "buckets": SMALL_BUCKETS}


def sleeping_buckets(rounds: int, steps: int) -> dict[str, Any]:
    """Two ranks, 16 buckets of 64 KB between sleeps of 1.5 ms: seconds of each backward, by entrant and round."""
    import torch

    def make() -> Any:
        return _bench.sleeping_net(SLEEPING_BUCKETS, SLEEPING_FEATURES, SLEEP_S)

    with _bench.process_group():
        tensor, cap = torch.ones(1, SLEEPING_FEATURES), SLEEPING_FEATURES**2 * 4 / MB
        result = bucket_contest(make, tensor, cap, rounds, steps)
    return {**result, "buckets": SLEEPING_BUCKETS}


def bucket_contest(
    make: Callable[[], Any], tensor: Any, cap_mb: float, rounds: int, steps: int
) -> dict[str, Any]:
    """Run the six entrants: with and without a Python hook, and watched in each way."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def job(*, python_hook: bool = False) -> tuple[Any, Callable[[], float]]:
        ddp = torch.nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=cap_mb)
        if python_hook:
            ddp.register_comm_hook(None, allreduce_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-9)

        def step() -> float:
            loss = ddp(tensor).sum()
            began = time.perf_counter()
            loss.backward()
            took = time.perf_counter() - began
            optimizer.step()
            optimizer.zero_grad()
            return took

        for _ in range(3):
            step()
        return ddp, step

    built_in, plain_step = job()
    hooked, hooked_step = job(python_hook=True)
    ours, ours_step = job()
    shadow = {"shadow_every": 1}  # from step 12 on every step is a shadow step
    entrants = [
        _bench.Entrant("built-in", plain_step),
        _bench.Entrant("built-in, passive", plain_step, watched(built_in)),
        _bench.Entrant("built-in, shadow", plain_step, watched(built_in, **shadow), warm_up=14),
        _bench.Entrant("python hook", hooked_step),
        _bench.Entrant("python hook, passive", hooked_step, watched(hooked)),
        _bench.Entrant("hook mode", ours_step, watched(ours, mode="hook"), warm_up=4),
    ]
    return {"rounds": _bench.contest(entrants, rounds, steps)}


def watched(model: Any, **settings: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return what attaches a watch for one block, with a log and step lines as by default."""
    import overlapwatch

    @contextlib.contextmanager
    def attach() -> Iterator[None]:
        with (
            tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as logs,
            overlapwatch.watch(model, log_dir=logs, **settings),
        ):
            yield

    return attach


# -- what a step costs -----------------------------------------------------------------------------------------


def training(
    bucket_cap_mb: float | None = STEP_FEATURES**2 * 4 / MB,
) -> tuple[Any, Callable[[], float]]:
    """Return a DDP module and its step: sleep and matrix products of about 110 ms, 10 MB of gradients.

    Args:
        bucket_cap_mb: MiB a bucket, by default 10 buckets; None: DDP's own choice (one of 1 MB, one of the rest).
    """
    import torch

    net = _bench.sleeping_net(STEP_BLOCKS, STEP_FEATURES, STEP_SLEEP_S)
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-9)
    batch = torch.ones(STEP_BATCH, STEP_FEATURES)

    def step() -> float:
        began = time.perf_counter()
        ddp(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    for _ in range(4):
        step()
    return ddp, step


def whole_steps(rounds: int, steps: int) -> dict[str, Any]:
    """Two ranks: seconds of each step, watched, unwatched twice, and under torch.profiler."""
    from torch.profiler import ProfilerActivity, profile, schedule

    with _bench.process_group():
        ddp, step = training()
        running: list[Any] = []

        @contextlib.contextmanager
        def profiled() -> Iterator[None]:
            cycle = schedule(wait=0, warmup=1, active=3, repeat=0)
            with profile(activities=[ProfilerActivity.CPU], schedule=cycle) as profiler:
                running.append(profiler)
                yield
                running.pop()

        def profiled_step() -> float:
            began = time.perf_counter()
            step()
            running[-1].step()
            return time.perf_counter() - began

        entrants = [
            _bench.Entrant("unwatched", step),
            _bench.Entrant("watched", step, watched(ddp)),
            _bench.Entrant("unwatched again", step),
            _bench.Entrant("torch.profiler", profiled_step, profiled),
        ]
        return {"rounds": _bench.contest(entrants, rounds, steps)}


def steps_as_ddp_buckets(rounds: int, steps: int) -> dict[str, Any]:
    """Two ranks: seconds of each step with DDP's own bucket size, watched and unwatched twice."""
    with _bench.process_group():
        ddp, step = training(None)
        entrants = [
            _bench.Entrant("unwatched", step),
            _bench.Entrant("watched", step, watched(ddp)),
            _bench.Entrant("unwatched again", step),
        ]
        return {"rounds": _bench.contest(entrants, rounds, steps)}


def traceml(rounds: int, steps: int) -> dict[str, Any]:
    """Two ranks started by `traceml run`: seconds of each step, inside and outside of its `trace_step`."""
    import traceml_ai

    with _bench.process_group():
        traceml_ai.init(mode="auto", on_missing_aggregator="raise")
        ddp, step = training()

        def traced() -> float:
            began = time.perf_counter()
            with traceml_ai.trace_step(ddp):
                step()
            return time.perf_counter() - began

        entrants = [_bench.Entrant("untraced", step), _bench.Entrant("traced", traced)]
        return {"rounds": _bench.contest(entrants, rounds, steps)}


# -- what stays ------------------------------------------------------------------------------------------------


def footprint(_rounds: int, steps: int) -> dict[str, Any]:
    """One process, 16 buckets and parameters: memory, log bytes, the drain's CPU, the time of `watch()`."""
    import torch

    import overlapwatch
    from overlapwatch.sources import open_trace

    with _bench.process_group():
        net = _bench.sleeping_net(SLEEPING_BUCKETS, SLEEPING_FEATURES, 0.0)
        cap = SLEEPING_FEATURES**2 * 4 / MB
        ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-9)

        def run(count: int) -> None:
            for _ in range(count):
                ddp(torch.ones(1, SLEEPING_FEATURES)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        def log_of(count: int, **settings: Any) -> tuple[int, dict[str, int]]:
            with tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as logs:
                with overlapwatch.watch(ddp, log_dir=logs, **settings) as watch:
                    run(count) if count else time.sleep(1.5)
                path = Path(str(watch.log_path))
                return path.stat().st_size, dict(open_trace(path)[0].counters)

        run(20)
        before = resident_bytes()
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="overlapwatch-bench-") as logs:
            with overlapwatch.watch(ddp, log_dir=logs):
                attached = time.perf_counter() - began
                run(4 * steps)
                time.sleep(0.3)
                after = resident_bytes()
            whole, _ = log_of(3 * steps, keep_first=1 << 20)
            whole_part, _ = log_of(steps, keep_first=1 << 20)
            sampled, counters = log_of(3 * steps, keep_first=0)
            sampled_part, _ = log_of(steps, keep_first=0)
            _, idle = log_of(0)
        return {
            "resident_bytes": after - before,
            "attach_s": attached,
            "kept_step_bytes": (whole - whole_part) / (2 * steps),
            "step_bytes": (sampled - sampled_part) / (2 * steps),
            "drain_ns": counters["drain_cpu_ns"] / counters["steps"],
            "idle_ns": idle["drain_cpu_ns"] / 1.5,
            "buckets": SLEEPING_BUCKETS,
        }


def resident_bytes() -> int:
    """Resident memory of this process."""
    import os

    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kernel_windows(rounds: int, _steps: int) -> dict[str, Any]:
    """One process: what a kernel-level window costs, medians over windows of a few thousand events."""
    import torch

    from overlapwatch.watching.kernels import KernelWindows

    recorder = make_recorder()
    windows = KernelWindows(recorder, 2, first=1)
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(60)])
    opened, closed, read, events, errors = [], [], [], [], []
    for step in range(1, 2 * rounds + 2):
        began = time.perf_counter()
        windows.on_boundary(step)
        (closed if step % 2 else opened).append(time.perf_counter() - began)
        began = time.perf_counter()
        for window in windows.take():
            read.append(time.perf_counter() - began)
            events.append(window.events)
            errors.append(window.error_ns)
        net(torch.ones(4, 32)).sum().backward()
    windows.close()
    recorder.ring.close(remove=True)
    middle = _bench.median
    return {
        "events": middle(events),
        "open_s": middle(opened),
        "close_s": middle(closed[1:]),
        "read_s": middle(read),
        "error_ns": middle(errors),
    }


JOBS = {
    job.__name__: job
    for job in (
        events,
        small_buckets,
        sleeping_buckets,
        whole_steps,
        steps_as_ddp_buckets,
        traceml,
        footprint,
        kernel_windows,
    )
}

if __name__ == "__main__":
    name, rounds, steps = sys.argv[1:]
    _bench.finish(JOBS[name](int(rounds), int(steps)))
