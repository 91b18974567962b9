import os

import numpy as np
import pytest

from overlapwatch.log.frames import MAGIC, Events, Note, Summaries, encode
from overlapwatch.vocabulary import RECORD
from overlapwatch.watching import across
from overlapwatch.watching.across import AcrossRanks, effective_every
from tests.accounting.ranks.test_live_lateness import rows


class Run:
    """Logs of some ranks that grow as the test says."""

    def __init__(self, directory, ranks=3) -> None:
        self.paths = [directory / f"rank{rank}-run.owlog" for rank in range(ranks)]
        for path in self.paths:
            path.write_bytes(MAGIC)
        self.across = AcrossRanks(directory, "run", ranks, every=10)

    def append(self, rank, data: bytes) -> None:
        with self.paths[rank].open("ab") as file:
            file.write(data)

    def log(self, first, count, late=2) -> None:
        for rank in range(len(self.paths)):
            tails = [6.0 if rank == late else 18.0] * count
            self.append(rank, encode(Events(first, first, 0, np.zeros(5, RECORD))))
            self.append(rank, encode(Summaries(rows(tails, first=first))))


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_words_every_n_steps(run) -> None:
    run.log(1, 7)
    run.across.poll()
    assert run.across.words(9) == ""
    assert run.across.words(10) == (
        "  step 7: rank 2 last by 12.0 ms  worst: rank 2, late in 7 of 7 steps by 12.0 ms"
    )
    assert run.across.words(11) == ""
    run.log(8, 20)
    run.across.poll()
    assert "late in 27 of 27 steps" in run.across.words(20)


def test_nobody_late(run) -> None:
    run.log(1, 8, late=None)
    run.across.poll()
    assert run.across.words(10) == "  step 8: no rank late  of 3 ranks none stands out in 8 steps"


def test_nothing_is_said_before_two_ranks_have_a_common_step(run) -> None:
    run.append(0, encode(Summaries(rows([1, 2]))))
    run.across.poll()
    assert run.across.words(10) == ""
    run.log(3, 2)
    run.across.poll()
    assert run.across.words(11)  # as soon as it can be said


def test_a_frame_that_is_being_written_is_read_later(run) -> None:
    frame = encode(Summaries(rows([6.0] * 6)))
    for rank in (0, 1):
        run.append(rank, encode(Summaries(rows([18.0] * 6))))
    for part in (frame[:3], frame[3:11], frame[11:-1]):
        run.append(2, part)
        run.across.poll()
        assert run.across.judge().ranks == 2
    run.append(2, frame[-1:])
    run.across.poll()
    assert run.across.judge().late_rank == 2


def test_big_frames_are_passed_over_not_read(run, monkeypatch) -> None:
    monkeypatch.setattr(across, "AT_ONCE_BYTES", 4096)
    run.append(2, encode(Events(1, 1, 0, np.zeros(1000, RECORD))))
    run.log(1, 6)
    for _ in range(3):
        run.across.poll()
    assert run.across.judge().late_rank == 2


def test_a_damaged_log_is_left_alone(run) -> None:
    run.log(1, 6)
    run.append(1, b"\xff" * 100)
    run.append(0, encode(Note(1, "a note")))
    for _ in range(3):
        run.across.poll()
    run.log(7, 6)
    run.across.poll()
    assert run.across.judge().step == 6
    assert [tail.given_up for tail in run.across._tails] == [False, True, False]


def test_no_directory_no_words(tmp_path) -> None:
    nowhere = AcrossRanks(tmp_path / "nowhere", "run", 4, every=1)
    nowhere.poll()
    assert nowhere.words(5) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_left_alone(run) -> None:
    run.paths[1].chmod(0)
    run.across.poll()
    assert run.across._tails[1].given_up


def test_it_stops_after_a_moment_and_goes_on_with_the_next(run, monkeypatch) -> None:
    run.log(1, 6)
    monkeypatch.setattr(across, "AT_ONCE_S", -1.0)
    for read in (1, 2, 3):
        run.across.poll()
        assert sum(len(tail.rows) > 0 for tail in run.across._tails) == read


def test_only_the_latest_steps_are_kept(run) -> None:
    run.log(1, 3 * across.LATEST_STEPS)
    run.across.poll()
    assert {len(tail.rows) for tail in run.across._tails} == {across.LATEST_STEPS}


@pytest.mark.parametrize(
    ("asked", "world", "every"),
    [("auto", 1, 0), ("auto", 4, 50), ("auto", 1024, 50), ("auto", 1025, 0), (7, 4096, 7), (0, 4, 0)],
)  # fmt: skip
def test_when_it_is_on(asked, world, every) -> None:
    assert effective_every(asked, world) == every
