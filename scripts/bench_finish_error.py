#!/usr/bin/env python3
"""How far the live finish of a gloo collective is off: against the profiler's own record, and against the other rank.

    scripts/bench_finish_error.py [--quick] [--write]       --write puts the table into docs/performance.md

A watched DDP job on 2 ranks runs some steps under PyTorch's profiler. In its backward, rank 0 sleeps, multiplies
matrices (C++, without the interpreter's lock) or spins in Python (holding it); rank 1 always sleeps.

The profiler stamps the end of a collective after its callbacks, ours among them. So where our callback waits for the
lock, the profiler's stamp is late with it, and says nothing. The other rank is the independent witness: both end an
all-reduce together, within what the first line of the table shows, and its own callback never has to wait.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _bench
import numpy as np

SITUATIONS = {
    "sleeps": "sleeps (interpreter idle)",
    "multiplies": "multiplies matrices (C++, lock free)",
    "spins": "spins in Python (lock held)",
}
BLOCKS, FEATURES, BLOCK_S = 6, 512, 0.012
BUCKET_MB = FEATURES * FEATURES * 4 / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps: to see that it runs")
    parser.add_argument("--write", action="store_true", help="update docs/performance.md")
    parser.add_argument("--rank-of", choices=SITUATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=40, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        _bench.finish(rank(options.rank_of, options.steps))
        return
    steps = 4 if options.quick else options.steps
    facts = _bench.machine()
    rows, counts, bounded = [], [], []
    for situation, words in SITUATIONS.items():
        arguments = ["--rank-of", situation, "--steps", str(steps)]
        ours, others = _bench.run_ranks(Path(__file__), arguments, 2)
        mine, kineto, witness = (
            np.array(values) for values in (ours["finish"], ours["kineto"], others["finish"])
        )
        rows.append([words, *spread(mine - kineto), *spread(mine - witness)])
        counts.append(len(mine))
        bounded.append(ours["bounded"])
    head = ["rank 0's backward"]
    head += [
        f"{what}, {of}"
        for what in ("profiler", "other rank")
        for of in ("median", "90 % within", "all within")
    ]
    remark = (
        f"In ms: our finish minus the other, median, and the size within which 90 % and all of them lie; "
        f"{min(counts)} all-reduces of {BUCKET_MB:.0f} MB in each line. Of them {', '.join(map(str, bounded))} "
        "finishes came after the backward's wait had ended; they are recorded as its end, and as estimated."
    )
    text = f"{facts}\n\n{_bench.table(head, rows)}\n\n{remark}"
    _bench.publish(
        "bench_finish_error", "scripts/bench_finish_error.py --write", text, write=options.write
    )


def spread(difference_ns: Any) -> list[str]:
    """Return the signed median, and the 90th percentile and maximum of the size, in ms."""
    size = np.abs(difference_ns)
    return [
        f"{np.median(difference_ns) / 1e6:+.3f}",
        f"{np.percentile(size, 90) / 1e6:.3f}",
        f"{size.max() / 1e6:.3f}",
    ]


def rank(situation: str, steps: int) -> dict[str, Any]:
    """Run the job on one rank; return the finish times of its profiled all-reduces, ns, in order of launch."""
    import torch

    import overlapwatch
    from overlapwatch.sources import open_trace
    from overlapwatch.vocabulary import RecordFlag
    from overlapwatch.watching.kernel_events import ANCHOR, place_clock, read_events

    busy = {"sleeps": time.sleep, "multiplies": lambda _: None, "spins": spin}

    def anchors() -> tuple[list[int], list[int]]:
        mark = torch._C._profiler._RecordFunctionFast
        before, after = [], []
        for _ in range(4):
            before.append(time.perf_counter_ns())
            with mark(ANCHOR):
                pass
            after.append(time.perf_counter_ns())
        return before, after

    with _bench.process_group() as number, tempfile.TemporaryDirectory() as logs:
        compute = busy[situation] if number == 0 else time.sleep
        # With a large batch the backward of a layer itself takes about as long as a sleep.
        batch = torch.ones(1024 if situation == "multiplies" and number == 0 else 1, FEATURES)
        net = _bench.sleeping_net(BLOCKS, FEATURES, BLOCK_S, compute)
        ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        watch = overlapwatch.watch(ddp, log_dir=logs, sinks=(), keep_first=1 << 20, shadow_every=0)

        def step() -> None:
            ddp(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(4):
            step()
        with torch.autograd.profiler.profile(use_kineto=True) as profiler:
            first = anchors()
            for _ in range(steps):
                step()
            time.sleep(0.1)  # the last callbacks
            last = anchors()
        watch.close()
        (recording,) = open_trace(Path(str(watch.log_path)))
    events = profiler.kineto_results.events()
    place, _ = place_clock(
        np.array(first[0] + last[0]),
        np.array(first[1] + last[1]),
        read_events(events, on_device=False),
    )
    reduces = sorted(
        (e for e in events if e.name() == "gloo:all_reduce"), key=lambda e: e.start_ns()
    )
    kineto = place(np.array([event.end_ns() for event in reduces]))
    records = recording.timeline.communication
    records = records[np.argsort(records["sequence"])][-len(reduces) :]
    if len(records) != len(reduces) or len(reduces) != steps * BLOCKS:
        raise SystemExit(f"{len(reduces)} all-reduces in the profile, {len(records)} in the log")
    bounded = records["flags"] & int(RecordFlag.FINISH_ESTIMATED) != 0
    return {
        "finish": records["finish"].tolist(),
        "kineto": kineto.tolist(),
        "bounded": int(bounded.sum()),
    }


def spin(seconds: float) -> None:
    """Keep the interpreter busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


if __name__ == "__main__":
    sys.exit(main())
