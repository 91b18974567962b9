import os
import signal
from functools import partial
from pathlib import Path

import pytest

from overlapwatch.commands import map_files as module
from overlapwatch.commands.map_files import files_of, map_files
from overlapwatch.errors import ConfigurationError, InputError
from tests.log.samples import write_log


def content(path: Path) -> str:
    """What the tests map: a function of a module, so that it can be sent to other processes."""
    text = path.read_text()
    if text == "bad":
        raise InputError(f"{path}: bad")
    return text


def content_or_die(here: int, path: Path) -> str:
    if path.read_text() == "3" and os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return content(path)


@pytest.fixture
def files(tmp_path) -> list[Path]:
    paths = [tmp_path / f"{number}.txt" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_text("bad" if number == 7 else str(number))
    return paths


def check(outcomes, files) -> None:
    outcomes = list(outcomes)
    assert [path for path, _ in outcomes] == files
    for number, (path, outcome) in enumerate(outcomes):
        if number == 7:
            assert isinstance(outcome, InputError)
            assert str(outcome) == f"{path}: bad"
        else:
            assert outcome == str(number)


def test_in_this_process(files, monkeypatch) -> None:
    monkeypatch.setattr(module, "_in_a_pool", lambda *_: pytest.fail("not worth a pool"))
    check(map_files(content, files), files)


def test_in_a_pool(files) -> None:
    check(map_files(content, files, workers=2), files)


def test_a_pool_that_breaks_goes_on_here(files) -> None:
    check(map_files(partial(content_or_die, os.getpid()), files, workers=2), files)


def test_no_more_than_a_few_files_are_under_way() -> None:
    under_way, most = set(), 0

    class Waiting:
        def __init__(self, task) -> None:
            nonlocal most
            self.task = task
            under_way.add(self)
            most = max(most, len(under_way))

        def result(self):
            under_way.remove(self)
            return list(self.task)

    tasks = [[number, number + 1] for number in range(0, 200, 2)]
    assert list(module._in_order(Waiting, tasks, 6)) == list(range(200))
    assert most == 6


def test_whoever_stops_reading_cancels_the_rest() -> None:
    cancelled = []

    class Waiting:
        def __init__(self, task) -> None:
            self.task = task

        def result(self):
            return self.task

        def cancel(self) -> None:
            cancelled.append(self.task)

    found = module._in_order(Waiting, [[number] for number in range(10)], 3)
    assert next(found) == 0
    found.close()
    assert cancelled == [[1], [2]]


def test_on_dask(files) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        check(map_files(content, files, scheduler=cluster.scheduler_address), files)


def test_a_scheduler_that_is_not_there_is_one_sentence(files, monkeypatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(module, "CONNECT_S", 0.3)
    with pytest.raises(ConfigurationError, match="no Dask scheduler answers there"):
        list(map_files(content, files, scheduler="tcp://127.0.0.1:9"))


def test_an_address_that_is_none_is_one_sentence(files) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(ConfigurationError, match="--scheduler nonsense://x"):
        list(map_files(content, files, scheduler="nonsense://x"))


def test_files_of_directories(tmp_path) -> None:
    run, others = tmp_path / "run", tmp_path / "others"
    run.mkdir()
    others.mkdir()
    log = write_log(run / "rank1-run-a.owlog")
    (run / "notes.txt").write_text("mine")
    dumps = [others / "trace_rank_0", others / "trace_rank_1"]
    for path in (*dumps, others / ".hidden"):
        path.write_text("x")
    assert files_of([run, others, dumps[0]]) == ([log, *dumps], [])
    with pytest.raises(InputError, match="no such file"):
        files_of([tmp_path / "gone"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file in the directory"):
        files_of([tmp_path / "empty"])
