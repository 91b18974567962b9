"""Do timed events cost overlap here? Two streams with spinning kernels, with and without events between the kernels, each in
a process of its own, since CUDA_DEVICE_MAX_CONNECTIONS is read once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlapwatch.hooks.hazard import EventPolicy, event_policy

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, time, torch
streams = [torch.cuda.Stream(), torch.cuda.Stream()]

def run(timed):
    events = []
    torch.cuda.synchronize()
    before = time.perf_counter_ns()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                for step in range(3):
                    if timed and step != 1:
                        events.append(torch.cuda.Event(enable_timing=True))
                        events[-1].record()
                    elif step == 1:
                        torch.cuda._sleep(2_000_000)
    torch.cuda.synchronize()
    return time.perf_counter_ns() - before

run(True), run(False)
rounds = [(run(False), run(True)) for _ in range(5)]
print(json.dumps([min(plain for plain, _ in rounds), min(timed for _, timed in rounds)]))
"""


def slowdown(connections):
    environ = {
        key: value for key, value in os.environ.items() if key != "CUDA_DEVICE_MAX_CONNECTIONS"
    }
    if connections:
        environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    done = subprocess.run(
        check=False,
        args=[sys.executable, "-c", PROGRAM],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    plain, timed = json.loads(done.stdout)
    return timed / plain


def test_where_pairs_are_the_policy_timed_events_keep_the_overlap(number):
    assert event_policy("cuda", {}).policy is EventPolicy.EVENT_PAIRS
    factor = slowdown(None)
    number("two streams with timed events, default connections", factor, "x")
    assert factor < 1.3


def test_with_one_connection_pairs_are_not_the_policy(number):
    environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert event_policy("cuda", environ).policy is EventPolicy.PHASE_EVENTS_ONLY
    # No bound: this is the number by which the policy is to be judged.
    number("two streams with timed events, one connection", slowdown("1"), "x")
