"""What a real NVTX tool is told: a small one (tests/support/nvtx_capture.c) is injected into a subprocess."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from overlapwatch.hooks.nvtx import NullRanges, make_ranges
from overlapwatch.vocabulary import CollectiveKind, Phase

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "support" / "nvtx_capture.c"

PROGRAM = """
import threading
from overlapwatch.hooks.nvtx import make_ranges
from overlapwatch.vocabulary import CollectiveKind, Phase

ranges = make_ranges()
assert ranges.active, ranges.because
ranges.name_bucket(3, "bucket 0", CollectiveKind.ALL_REDUCE)
ranges.name_bucket(4, "bucket 1", CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER)
for step in (1, 2):
    ranges.push_step(step)
    phase = ranges.start_phase(Phase.BACKWARD)
    ranges.ready(3)
    token = ranges.start(CollectiveKind.ALL_REDUCE, 3)
    other = threading.Thread(target=ranges.end, args=(token,))
    other.start()
    other.join()
    ranges.end(token)
    ranges.end(phase)
    ranges.pop()
ranges.start(CollectiveKind.ALL_GATHER, 4)
ranges.start(CollectiveKind.BROADCAST, 99)
ranges.ready(99)
ranges.close()
"""


@dataclass(frozen=True)
class Call:
    call: str
    domain: str
    thread: str
    id: str
    kind: str
    text: str
    payload: str


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the NVTX tool")
    library = tmp_path_factory.mktemp("nvtx") / "nvtx_capture.so"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-o",
            library,
            SOURCE,
            "-lpthread",
        ],
        check=True,
    )
    return library


def run(program, tmp_path, **environ):
    path = tmp_path / "calls.tsv"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NVTX_CAPTURE_FILE": str(path), **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = path.read_text().splitlines() if path.exists() else []
    return [Call(*line.split("\t")) for line in lines], done.stdout


def test_what_a_tool_is_told(tool, tmp_path):
    calls, _ = run(PROGRAM, tmp_path, NVTX_INJECTION64_PATH=str(tool))
    ours = [call for call in calls if call.domain == "overlapwatch"]
    assert ours[0].call == "create"
    told = [call for call in ours if call.call not in ("create", "register")]
    assert [(call.call, call.text, call.payload) for call in told] == [
        line
        for step in ("1", "2")
        for line in [
            ("push", "step", step),
            ("start", "backward", "-"),
            ("mark", "bucket ready, bucket 0", "-"),
            ("start", "AllReduce launch to finish, bucket 0", "-"),
            ("end", "-", "-"),
            ("end", "-", "-"),
            ("pop", "-", "-"),
        ]
    ] + [
        ("start", "AllGather launch to finish, bucket 1", "-"),
        ("start", "Broadcast launch to finish", "-"),
        ("mark", "bucket ready", "-"),
        ("end", "-", "-"),
        ("end", "-", "-"),
    ]
    # Every message is a registered string, and all were registered before the first one was used.
    assert {call.kind for call in told if call.text != "-"} == {"registered"}
    first_told = ours.index(told[0])
    assert all(call.call != "register" for call in ours[first_told:])
    registered = [call.text for call in ours if call.call == "register"]
    assert len(registered) == len(set(registered))
    # A collective ends on another thread than it began, under the id it began with; pushes and pops stay on theirs.
    starts = [call for call in told if call.call == "start"]
    ends = [call for call in told if call.call == "end"]
    phase, collective = starts[:2]
    assert [end.id for end in ends[:2]] == [collective.id, phase.id]
    assert {end.id for end in ends} == {start.id for start in starts}
    assert ends[0].thread != collective.thread
    assert len({call.thread for call in told if call.call in ("push", "pop")}) == 1


REASON = (
    "from overlapwatch.hooks.nvtx import make_ranges; r = make_ranges(); print(r.active, r.because)"
)


def test_nobody_listens(tmp_path):
    assert run(REASON, tmp_path)[1] == "False no NVTX tool is attached to this process\n"


def test_a_tool_that_cannot_be_loaded(tmp_path):
    missing = str(tmp_path / "missing.so")
    assert run(REASON, tmp_path, NVTX_INJECTION64_PATH=missing)[1].startswith("False no NVTX tool")


def test_nvtx_disabled_by_its_own_variable(tool, tmp_path):
    calls, said = run(REASON, tmp_path, NVTX_INJECTION64_PATH=str(tool), NVTX_DISABLE="1")
    assert said == "False NVTX_DISABLE is set\n"
    assert {call.call for call in calls if call.domain == "overlapwatch"} <= {"create"}


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert make_ranges().because == "the nvtx package is not installed"


def test_the_package_is_too_old(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(enabled=lambda: True))
    assert make_ranges().because == "the nvtx package is too old; 0.2.12 or newer is needed"


def test_a_package_that_fails_costs_no_job(monkeypatch):
    def broken(name):
        raise OSError("no such symbol")

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=broken))
    assert make_ranges().because == "the nvtx package failed: OSError: no such symbol"


def test_the_null_ranges_have_the_same_names_and_do_nothing():
    from overlapwatch.hooks.nvtx import Ranges

    public = {name for name in vars(Ranges) if not name.startswith("_")}
    assert public <= set(dir(NullRanges))
    ranges = make_ranges(enabled=False)
    assert ranges.because == "NVTX is switched off"
    assert not ranges.active
    ranges.name_bucket(1, "bucket 0", CollectiveKind.ALL_REDUCE)
    ranges.push_step(1)
    ranges.end(ranges.start_phase(Phase.FORWARD))
    ranges.ready(1)
    ranges.end(ranges.start(CollectiveKind.ALL_REDUCE, 1))
    ranges.pop()
    ranges.close()


LIVE = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import overlapwatch

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
net = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(6)))
model = DistributedDataParallel(net, bucket_cap_mb=1)
watch = overlapwatch.watch(model, nvtx="on", sinks="none", shadow_every=0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
watch.close()
assert watch.summaries["buckets"].tolist() == [1, 2, 2, 2]
"""


def test_what_a_tool_sees_of_a_watched_job(tool, tmp_path):
    calls, _ = run(LIVE, tmp_path, NVTX_INJECTION64_PATH=str(tool))
    ours = [call for call in calls if call.domain == "overlapwatch"]
    steps = [call.payload for call in ours if call.call == "push"]
    # The range of the step that runs when a tool begins to listen is not seen from its beginning.
    assert steps[-3:] == ["2", "3", "4"]
    last = ours[max(i for i, call in enumerate(ours) if call.call == "push") :]
    texts = [call.text for call in last if call.call in ("start", "mark")]
    assert texts == [
        "forward",
        "backward",
        "bucket ready, bucket 0",
        "AllReduce launch to finish, bucket 0",
        "bucket ready, bucket 1",
        "AllReduce launch to finish, bucket 1",
        "optimizer",
    ]
    started = [call.id for call in ours if call.call == "start"]
    assert sorted(started) == sorted(call.id for call in ours if call.call == "end"), (
        "none stays open"
    )
    pushes, pops = (sum(call.call == word for call in ours) for word in ("push", "pop"))
    assert pushes == pops
