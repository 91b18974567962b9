#!/usr/bin/env python3
"""What watching FSDP2 costs: a step with and without a watch, and microseconds for each collective.

    scripts/bench_fsdp2.py [--write] [--quick]

Two ranks on gloo, 24 wrapped blocks whose backward sleeps. Blocks of steps watched and unwatched take turns in one
process; a second unwatched series shows the noise.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import _bench
from _bench_record_jobs import watched

BLOCKS, FEATURES, SLEEP_S, BATCH = 24, 256, 0.006, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny counts: to see that it runs")
    parser.add_argument("--write", action="store_true", help="update docs/performance.md")
    parser.add_argument("--job", nargs=2, metavar=("ROUNDS", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        _bench.finish(job(*map(int, options.job)))
        return
    facts, began = _bench.machine(), time.monotonic()
    counts = ["2", "2"] if options.quick else ["20", "10"]
    result = _bench.run_ranks(Path(__file__).resolve(), ["--job", *counts], 2)[0]
    rounds, collectives = result["rounds"], result["collectives"]
    ratio = _bench.ratio_of_medians(rounds["watched"], rounds["unwatched"])
    noise = _bench.ratio_of_medians(rounds["unwatched again"], rounds["unwatched"])
    added = _bench.difference_of_medians(rounds["watched"], rounds["unwatched"])
    middle = {
        name: 1e3 * _bench.median([second for block in series for second in block])
        for name, series in rounds.items()
    }
    each = [1e6 * value / collectives for value in (added.value, added.low, added.high)]
    rows = [
        [
            (
                f"step of 2 ranks, {BLOCKS} wrapped blocks, watched, log and step lines on "
                f"({sum(map(len, rounds['watched']))} pairs)"
            ),
            f"{middle['watched']:.2f} ms",
            f"{middle['unwatched']:.2f} ms",
            ratio.text(4, " ×"),
        ],
        [
            "the noise: the same job, unwatched twice",
            f"{middle['unwatched again']:.2f} ms",
            f"{middle['unwatched']:.2f} ms",
            noise.text(4, " ×"),
        ],
        [
            f"per collective ({collectives} a step)",
            "",
            "",
            f"{each[0]:.0f} ({each[1]:.0f} to {each[2]:.0f}) µs",
        ],
    ]
    text = _bench.table(["what", "watched", "unwatched", "ratio or difference"], rows)
    legend = (
        "Medians over interleaved blocks, in parentheses the 95 % interval from resampling rounds."
    )
    text = f"{facts}; {time.monotonic() - began:.0f} s. {legend}\n\n{text}"
    _bench.publish("bench_fsdp2", "scripts/bench_fsdp2.py --write", text, write=options.write)


def job(rounds: int, steps: int) -> dict[str, Any]:
    """Run on each rank: seconds of each step, watched and unwatched twice, and collectives a step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with _bench.process_group():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        net = _bench.sleeping_net(BLOCKS, FEATURES, SLEEP_S)
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
        batch = torch.ones(BATCH, FEATURES)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))

        def step() -> float:
            began = time.perf_counter()
            net(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return time.perf_counter() - began

        for _ in range(4):
            step()
        before = backend._get_sequence_number_for_group()
        step()
        collectives = backend._get_sequence_number_for_group() - before
        entrants = [
            _bench.Entrant("unwatched", step),
            _bench.Entrant("watched", step, watched(net)),
            _bench.Entrant("unwatched again", step),
        ]
        return {"rounds": _bench.contest(entrants, rounds, steps), "collectives": collectives}


if __name__ == "__main__":
    sys.exit(main())
