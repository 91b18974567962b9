"""Trains under a watch whose surroundings fail, one failure after the other, and tells what came of it.

Run by `test_failures`, one process a rank: `failures_job.py DIRECTORY [TMPFS]`, where TMPFS is a file system of a few
KB, if there is one. Prints one line of JSON for each failure. What the watch said is what was written to `sys.stderr`.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import overlapwatch
from overlapwatch.hooks import installed
from overlapwatch.hooks.names import Names
from overlapwatch.hooks.recorder import Recorder
from overlapwatch.hooks.times import HostTimes
from overlapwatch.log.writer import LogWriter
from overlapwatch.watching.assemble import Assembler
from tests.support.training import SMALL_BUCKETS_MB, Net

STEPS = 8
BEFORE_STEP = 4  # a failure in the middle of a run happens before this step

TMPFS: Any = Path(sys.argv[2]) if len(sys.argv) > 2 else None

Attach = Callable[[Any], Any]
During = Callable[[], object]


def nothing(*_: object) -> None:
    """Watch nothing, disturb nothing."""


def train(attach: Attach, during: During = nothing) -> str:
    """Train and return a hash of every bit of it."""
    torch.manual_seed(dist.get_rank())
    inputs = torch.randn(STEPS, 4, 48)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    watch = attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    total = hashlib.sha256()
    for step in range(STEPS):
        if step == BEFORE_STEP:
            during()
        loss = model(inputs[step]).square().mean()
        loss.backward()
        total.update(loss.item().hex().encode())
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    if watch is not None:
        watch.active_at_end = watch.active
        watch.close()
    return total.hexdigest()


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def faulty(function: Callable[..., Any], good_calls: int) -> Callable[..., Any]:
    """Return the function, with a fault in it that shows after so many calls."""
    calls = 0

    def fault(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > good_calls:
            raise ZeroDivisionError("injected")
        return function(*args, **kwargs)

    return fault


# -- failures: each yields (settings, what happens in the middle of the run) ----------------------

Failure = Callable[[Path], "contextlib.AbstractContextManager[tuple[dict[str, Any], During]]"]
FAILURES: dict[str, Failure] = {}


def failure(make: Callable[[Path], Iterator[tuple[dict[str, Any], During]]]) -> None:
    FAILURES[make.__name__] = contextlib.contextmanager(make)


@failure
def log_directory_below_a_file(place: Path):
    (place / "file").write_text("not a directory")
    yield {"log_dir": place / "file" / "run"}, nothing


@failure
def log_directory_is_a_file(place: Path):
    (place / "file").write_text("not a directory")
    yield {"log_dir": place / "file"}, nothing


@failure
def log_directory_not_writable(place: Path):
    yield {"log_dir": Path("/proc/overlapwatch")}, nothing


@failure
def log_directory_removed(place: Path):
    yield {"log_dir": place / "run"}, lambda: shutil.rmtree(place / "run")


@failure
def log_outgrows_the_file_size_limit(place: Path):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield (
            {"log_dir": place / "run"},
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, old[1])),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@failure
def log_disk_full(place: Path):
    yield {"log_dir": TMPFS / f"run{dist.get_rank()}"}, nothing


@failure
def ring_directory_not_writable(place: Path):
    yield {"ring_dir": Path("/proc")}, nothing


@failure
def ring_disk_full(place: Path):
    yield {"ring_dir": TMPFS}, nothing


@failure
def no_place_for_a_ring(place: Path):
    """Neither the chosen directory, nor shared memory, nor the temporary directory takes a file of that size."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        yield {"ring_dir": place}, nothing
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@failure
def callback_raises(place: Path):
    def callback(summary: dict[str, Any]) -> None:
        raise LookupError(f"rank {summary['rank']}, the user's own mistake")

    yield {"sinks": (callback,), "sink_ranks": "all"}, nothing


def _injected(owner: Any, name: str, good_calls: int) -> Failure:
    @contextlib.contextmanager
    def inject(place: Path) -> Iterator[tuple[dict[str, Any], During]]:
        with replaced(owner, name, faulty(getattr(owner, name), good_calls)):
            yield {"log_dir": place / "run"}, nothing

    return inject


FAILURES |= {
    "fault_when_a_span_begins": _injected(Recorder, "begin", 9),
    "fault_when_a_span_ends": _injected(Recorder, "end", 9),
    "fault_at_a_launch": _injected(Recorder, "launch", 9),
    "fault_when_a_step_begins": _injected(Recorder, "open_step", 3),
    "fault_following_a_finish": _injected(HostTimes, "mark_finish", 9),
    "fault_in_the_drain": _injected(Assembler, "poll", 3),
    "fault_writing_the_log": _injected(LogWriter, "write", 3),
    "fault_while_attaching": _injected(Names, "intern", 3),
}


def tell_failure(name: str, plain: str, place: Path) -> dict[str, Any]:
    """Train under this failure."""
    handles: list[Any] = []
    said = io.StringIO()
    place.mkdir(parents=True)
    with FAILURES[name](place) as (settings, during), contextlib.redirect_stderr(said):

        def attach(model: Any) -> Any:
            settings.setdefault("sinks", ("none",))
            handles.append(overlapwatch.watch(model, drain_ms=5, shadow_every=0, **settings))
            return handles[0]

        digest = train(attach, during)
    watch = handles[0]
    return {
        "identical": digest == plain,
        "said": said.getvalue().splitlines(),
        "active": watch.active_at_end,
        "steps": len(watch.summaries),
        "log": str(watch.log_path or ""),
        "installed": installed(),
        "rings": [
            str(ring) for ring in Path("/dev/shm").glob(f"overlapwatch-*/*-{os.getpid()}.owring")
        ],
    }


# -- exceptions of the user's ---------------------------------------------------------------------


class UsersError(Exception):
    """Of a class that nobody but the user knows."""


def exceptions(attach: Attach, register: str) -> list[str]:
    """Have the user's hook raise in step 3, go on all the same, and return every exception that came out."""
    calls = 0

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 7:  # the first step has one bucket, then there are four
            raise UsersError(f"bucket {bucket.index()} of the third step")
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    if register == "before":
        model.register_comm_hook(None, hook)
    watch = attach(model)
    if register == "after":
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    raised = []
    for _ in range(5):
        try:
            model(torch.ones(2, 48)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        except Exception as error:
            raised.append(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    if watch is not None:
        raised.append(f"active {watch.active}")
        watch.close()
    return raised


def tell_exceptions(register: str, mode: str) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        raised = exceptions(
            lambda model: overlapwatch.watch(model, mode=mode, sinks=("none",)), register
        )
    plain = exceptions(nothing, register)
    return {"plain": plain, "watched": raised, "said": said.getvalue().splitlines()}


def main() -> None:
    directory = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    plain = train(nothing)
    for name in FAILURES:
        if name.endswith("disk_full") and TMPFS is None:
            continue
        told = tell_failure(name, plain, directory / f"{name}-{dist.get_rank()}")
        print(json.dumps({"name": name, **told}), flush=True)
    for register in ("before", "after"):
        for mode in ("passive", "hook"):
            told = tell_exceptions(register, mode)
            print(json.dumps({"name": f"hook {register}, {mode}", **told}), flush=True)
    again = train(lambda model: overlapwatch.watch(model, sinks=("none",)))
    print(json.dumps({"name": "afterwards", "identical": again == plain}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
