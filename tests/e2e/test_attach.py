"""What `watch()` takes and what it says to the rest: every model, every moment, every order of calls.

One process with a gloo group of its own is enough for most of it; what needs a process's end, or workers, is a job.
"""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import overlapwatch
from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks import installed
from overlapwatch.log.reader import LogContents, read_log
from overlapwatch.vocabulary import NameKind, RecordKind, StepFlag
from overlapwatch.watching import NullWatch, Watch
from tests.support import jobs
from tests.support.training import SMALL_BUCKETS_MB, Net, alone

pytestmark = pytest.mark.e2e


@pytest.fixture
def group() -> Iterator[None]:
    with alone():
        yield


@pytest.fixture
def model(group: None) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)


def fit(*models: nn.Module, steps: int = 3) -> None:
    """Train all of them together."""
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    for _ in range(steps):
        sum(m(torch.ones(2, 48)).square().mean() for m in models).backward()
        optimizer.step()
        optimizer.zero_grad()


def collectives(log: LogContents) -> dict[int, int]:
    """Return the number of collectives of each step that has any."""
    records = np.concatenate([block.records for block in log.events])
    of_step = records["step"][records["kind"] == RecordKind.COLLECTIVE]
    return {int(step): int((of_step == step).sum()) for step in np.unique(of_step)}


def names(log: LogContents, kind: NameKind) -> set[str]:
    return {name.text for name in log.names.values() if name.kind is kind}


# -- what cannot be watched ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (
            nn.Linear(2, 2),
            "Linear is wrapped neither by DistributedDataParallel nor by fully_shard",
        ),
        (
            [nn.Linear(2, 2), nn.Linear(2, 2)],
            "Linear is wrapped neither by DistributedDataParallel nor by fully_shard",
        ),
        (3, "needs a torch.nn.Module, not int"),
        ([], "needs a torch.nn.Module, not an empty list"),
        ([nn.Linear(2, 2), None], "needs a torch.nn.Module, not NoneType"),
    ],
    ids=["unwrapped", "list", "number", "empty list", "not a module in a list"],
)
def test_what_is_not_wrapped_is_told_in_one_sentence(thing: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as told:
        overlapwatch.watch(thing)
    assert "\n" not in str(told.value)
    assert installed() == []


def test_before_the_process_group_exists_the_sentence_says_that_too(group: None) -> None:
    with pytest.raises(ConfigurationError) as told:
        overlapwatch.watch(nn.Linear(2, 2))
    assert "init_process_group" not in str(told.value)
    dist.destroy_process_group()
    try:
        with pytest.raises(ConfigurationError, match=r"after .*init_process_group\(\)"):
            overlapwatch.watch(nn.Linear(2, 2))
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_sharded_model_on_one_rank_is_watched_although_it_sends_nothing(group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
    with overlapwatch.watch(sharded, sinks="none", drain_ms=1) as watch:
        optimizer = torch.optim.SGD(sharded.parameters(), 0.1)
        for _ in range(3):
            sharded(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert watch.active
    assert watch.summaries["collectives"].tolist() == [0, 0, 0]


def test_after_the_process_group_is_gone_there_is_one_warning(
    model: DistributedDataParallel, caplog: pytest.LogCaptureFixture
) -> None:
    dist.destroy_process_group()
    watch = overlapwatch.watch(model)
    assert isinstance(watch, NullWatch)
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("overlapwatch could not start (ValueError: Default process group")
    assert told.endswith("; training is not affected")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


# -- switched off --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["OVERLAPWATCH_DISABLE", "OVERLAPWATCH_MODE", "mode", "disable"])
def test_switched_off_it_is_not_there(
    how: str, model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(vars(model))
    arguments = {"mode": {"mode": "off"}, "disable": {"disable": True}}.get(how, {})
    if not arguments:
        monkeypatch.setenv(how, "off" if how.endswith("MODE") else "1")
    with overlapwatch.watch(model, log_dir=tmp_path / "run", **arguments) as watch:
        assert isinstance(watch, NullWatch)
        assert not watch.active
        assert watch.mode == "off"
        assert watch.log_path is None
        assert installed() == []
        assert set(vars(model)) == before
        fit(model)
        watch.step()
        assert len(watch.summaries) == 0
    watch.remove()
    assert not (tmp_path / "run").exists()
    # Nothing is asked of the model either: a job is switched off without its script being understood.
    assert isinstance(overlapwatch.watch(nn.Linear(2, 2), **arguments), NullWatch)


# -- what can be watched -------------------------------------------------------------------------


def test_twice_on_one_model_is_one_watch(model: DistributedDataParallel, tmp_path: Path) -> None:
    watch = overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",))
    assert overlapwatch.watch(model) is watch
    assert overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",)) is watch
    fit(model)
    watch.close()
    watch.close()
    # Four weights with a bucket each, plus DDP's two broadcasts of the new layout in step 2.
    assert collectives(read_log(watch.log_path)) == {1: 1, 2: 6, 3: 4}


def test_other_settings_are_refused_and_the_first_watch_goes_on(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",)) as watch:
        with pytest.raises(ConfigurationError, match="watched already, with other settings"):
            overlapwatch.watch(model, log_dir=tmp_path / "other")
        assert watch.active
        fit(model)
    assert len(watch.summaries) == 3
    assert not (tmp_path / "other").exists()


def test_a_second_model_joins_the_watch(model: DistributedDataParallel, tmp_path: Path) -> None:
    second = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
    with overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",)) as watch:
        fit(model)
        assert overlapwatch.watch(second) is watch
        fit(model, second)
    log = read_log(watch.log_path)
    assert collectives(log) == {1: 1, 2: 6, 3: 4, 4: 5, 5: 10, 6: 8}
    assert {"bucket 3", "model 1: bucket 3"} <= names(log, NameKind.BUCKET)


@pytest.mark.parametrize("form", ["inside another", "list"])
def test_models_are_found_and_named(form: str, group: None, tmp_path: Path) -> None:
    pair = nn.ModuleDict(
        {"actor": DistributedDataParallel(Net()), "judge": DistributedDataParallel(Net())}
    )
    thing = pair if form == "inside another" else list(pair.values())
    with overlapwatch.watch(thing, log_dir=tmp_path, sinks=("none",)) as watch:
        fit(*pair.values())
    log = read_log(watch.log_path)
    labels = {"actor", "judge"} if form == "inside another" else {"0", "1"}
    assert names(log, NameKind.MODULE) == labels
    assert names(log, NameKind.BUCKET) == {
        f"{label}: {what}" for label in labels for what in ("whole model", "bucket 0")
    }
    assert collectives(log) == {1: 2, 2: 6, 3: 2}


def test_one_process_alone_can_be_watched(model: DistributedDataParallel, tmp_path: Path) -> None:
    with overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",)) as watch:
        assert isinstance(watch, Watch)
        assert (watch.rank, watch.world) == (0, 1)
        fit(model)
    log = read_log(watch.log_path)
    assert log.header is not None
    assert log.header.world == 1
    assert watch.summaries["buckets"].tolist() == [1, 4, 4]
    assert names(log, NameKind.PARAMETER) == {
        f"layers.{i}.{p}" for i in range(4) for p in ("weight", "bias")
    }


def test_a_new_watch_can_follow_a_closed_one(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    for run in ("first", "second"):
        with overlapwatch.watch(model, log_dir=tmp_path / run, sinks=("none",)) as watch:
            fit(model)
        assert list(collectives(read_log(watch.log_path))) == [1, 2, 3]


def test_a_new_watch_can_follow_one_that_turned_itself_off(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as faulty:
        faulty.setattr("overlapwatch.hooks.recorder.Recorder.launch", None)
        first = overlapwatch.watch(model, sinks=("none",))
        fit(model)
    assert not first.active
    with overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",)) as second:
        assert second is not first
        assert len(model._forward_hooks) == 1
        fit(model)
        assert second.active
    assert list(collectives(read_log(second.log_path))) == [1, 2, 3]


def test_shadow_steps_record_nothing_but_the_wait_and_change_nothing(
    group: None, tmp_path: Path
) -> None:
    def trained(watched: bool) -> DistributedDataParallel:
        torch.manual_seed(0)
        model = DistributedDataParallel(Net(), bucket_cap_mb=SMALL_BUCKETS_MB)
        if watched:
            overlapwatch.watch(model, log_dir=tmp_path, sinks=("none",), shadow_every=2)
        fit(model, steps=20)
        return model

    model = trained(watched=True)
    watch = overlapwatch.watch(model)
    assert watch.active
    watch.close()
    for watched, plain in zip(model.parameters(), trained(watched=False).parameters(), strict=True):
        assert torch.equal(watched, plain)
    shadows = watch.summaries[watch.summaries["flags"] & StepFlag.SHADOW != 0]
    assert shadows["step"].tolist() == [13, 15, 17, 19]  # none while the job warms up
    assert (shadows["collectives"] == 0).all()
    assert (shadows["wait_ns"] > 0).all()
    assert set(collectives(read_log(watch.log_path))) == set(range(1, 21)) - {13, 15, 17, 19}


def test_the_python_reducer_is_told_to_be_invisible(
    group: None, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._dynamo

    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(Net())
    with overlapwatch.watch(model, sinks=("none",)):
        (told,) = [record.message for record in caplog.records]
    assert "python_reducer" in told
    assert "not known" in told


def test_a_loop_can_say_itself_where_steps_end(model: DistributedDataParallel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with overlapwatch.watch(model, sinks=("none",)) as watch:
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(2, 48)).square().mean().backward()
                optimizer.step()
            watch.step()
    # The first step() only takes over: until then an optimizer step had ended a step.
    assert len(watch.summaries) == 4


# -- what users do with a watched model ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["passive", "hook"])
def test_a_watched_model_is_copied_and_pickled_without_the_watch(
    mode: str, model: DistributedDataParallel, tmp_path: Path
) -> None:
    plain = set(vars(model))
    keys = list(model.state_dict())
    with overlapwatch.watch(model, mode=mode, sinks=("none",)):
        fit(model)
        assert list(model.state_dict()) == keys
        copies = [copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))]
        torch.save(model, tmp_path / "model.pt")
        copies.append(torch.load(tmp_path / "model.pt", weights_only=False))
        for twin in copies:
            assert set(vars(twin)) == plain
            assert not twin._forward_hooks
            assert not twin._forward_pre_hooks
            assert twin.register_comm_hook.__func__ is DistributedDataParallel.register_comm_hook
            for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(mine, its)
        assert len(model._forward_hooks) == 1
        fit(copies[0])
    assert set(vars(model)) == plain


WORKERS = """
    import os, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    import overlapwatch
    from tests.support.training import Net

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    data = TensorDataset(torch.randn(16, 48))
    watch = overlapwatch.watch(model, log_dir=sys.argv[1], sinks=("none",))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    pid = os.fork()
    if pid == 0:  # a child that ends as an interpreter does, with exit handlers, and uses what it inherited
        model.module(torch.ones(2, 48))
        optimizer.step()
        watch.close()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert watch.active
    print("steps", len(watch.summaries) or "later", flush=True)
    dist.destroy_process_group()
"""


def test_workers_forked_from_a_watched_process_leave_no_trace(tmp_path: Path) -> None:
    result = jobs.run_ranks(WORKERS, 2, args=[str(tmp_path)], timeout_s=60).check()
    assert "Traceback" not in result.stderr
    logs = [read_log(path) for path in sorted(tmp_path.glob("*.owlog"))]
    assert len(logs) == 2
    for log in logs:
        assert log.end is not None
        assert log.summaries["step"].tolist() == list(range(1, 9))
        assert collectives(log) == {1: 1, 2: 3, **dict.fromkeys(range(3, 9), 1)}
        assert not Path(log.header.ring).exists()


ENDING = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import overlapwatch
    from tests.support.training import Net

    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    overlapwatch.watch(model, log_dir=sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 48)).square().mean().backward()
        optimizer.step()
    if sys.argv[2] == "destroys":
        dist.destroy_process_group()
    if sys.argv[2] == "raises":
        raise KeyError("the user's own")
"""


@pytest.mark.parametrize("how", ["destroys", "forgets", "raises"])
def test_the_end_of_the_process_closes_the_watch(how: str, tmp_path: Path) -> None:
    result = jobs.run_ranks(ENDING, 1, args=[str(tmp_path), how], timeout_s=60)
    assert result.returncode == (1 if how == "raises" else 0), result.stderr
    if how == "raises":
        assert result.stderr.rstrip().endswith('KeyError: "the user\'s own"')
    (path,) = tmp_path.glob("*.owlog")
    log = read_log(path)
    assert log.end is not None
    assert log.end.reason == "closed"
    assert log.summaries["step"].tolist() == [1, 2, 3]
    assert not Path(log.header.ring).exists()
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["step", str(n)] for n in (1, 2, 3)]
    assert f"overlapwatch: log in {path}" in lines
