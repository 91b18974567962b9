import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from overlapwatch.errors import InputError
from overlapwatch.ring import MAX_CAPACITY, Ring, RingReader, default_directories
from overlapwatch.ring.layout import SLOT_BYTES, SLOT_STRUCT
from overlapwatch.vocabulary import RecordFlag, RecordKind

ROOT = Path(__file__).parents[1]
ABOUT = {"run_id": "r", "rank": 3, "pid": 1}
FULL_DEVICE = OSError(28, "No space left on device")


def make(directory: Path, capacity: int = 8) -> Ring:
    ring, problems = Ring.create("ring", capacity, (directory / "rings",), ABOUT)
    assert problems == []
    return ring


def write(ring: Ring, number: int) -> int:
    """Write a record whose fields all tell its number."""
    return ring.write(
        RecordKind.COLLECTIVE, 2, 1, 0, number, number, number & 0xFFFF, 0, number, number,
        number, number, number, number, 0,
    )  # fmt: skip


def draw_without_writing(ring: Ring) -> None:
    """Do what a thread does that is stopped between drawing a number and packing: leave a hole."""
    cells = dict(zip(ring.write.__code__.co_freevars, ring.write.__closure__, strict=True))
    cells["draw"].cell_contents()


def pack(ring: Ring, slot: int, number: int, *, begin: int | None = None) -> None:
    """Do what a delayed thread does at last, through the file."""
    begin = slot + 1 if begin is None else begin
    values = (3, 2, 1, 0, *[number] * 2, 0, 0, *[number] * 6, 0)
    with ring.path.open("r+b") as file:
        file.seek(4096 + slot % ring.capacity * SLOT_BYTES)
        file.write(SLOT_STRUCT.pack(begin, *values, slot + 1))


def assert_consistent(records: np.ndarray) -> None:
    for name in ("owner", "sequence", "cause", "bytes", "ready", "launch", "start"):
        assert (records[name] == records["step"]).all(), name


# -- reading ---------------------------------------------------------------------------------------


def test_records_come_out_in_order_and_once(tmp_path):
    ring = make(tmp_path)
    assert [write(ring, number) for number in (10, 11, 12)] == [0, 1, 2]
    batch = ring.read(0)
    assert batch.records["step"].tolist() == [10, 11, 12]
    assert batch.slots.tolist() == [0, 1, 2]
    assert (batch.next_slot, batch.lost, batch.hole) == (3, 0, False)
    assert len(ring.read(3).records) == 0
    write(ring, 13)
    assert ring.read(3).records["step"].tolist() == [13]


def test_a_full_ring_is_read_across_its_end_without_loss(tmp_path):
    ring = make(tmp_path)
    for number in range(13):
        write(ring, number)
    batch = ring.read(5)
    assert batch.records["step"].tolist() == list(range(5, 13))
    assert (batch.next_slot, batch.lost) == (13, 0)


@pytest.mark.parametrize("written", [9, 15, 16, 17, 100])
def test_what_was_lapped_is_lost_and_the_rest_is_read(tmp_path, written):
    ring = make(tmp_path)
    for number in range(written):
        write(ring, number)
    batch = ring.read(0)
    assert batch.slots.tolist() == list(range(written - 8, written))
    assert (batch.next_slot, batch.lost) == (written, written - 8)


def test_a_big_ring_is_read_in_growing_looks(tmp_path):
    ring = make(tmp_path, 4096)
    for number in range(5000):
        write(ring, number)
    assert ring.read(4700).slots.tolist() == list(range(4700, 5000))
    assert ring.read(1000).slots.tolist() == list(range(1000, 5000))
    batch = ring.read(100)
    assert batch.slots.tolist() == list(range(904, 5000))
    assert batch.lost == 804


def test_reading_stops_at_a_hole_until_it_is_filled(tmp_path):
    ring = make(tmp_path)
    write(ring, 0)
    draw_without_writing(ring)
    write(ring, 2)
    batch = ring.read(0)
    assert (batch.slots.tolist(), batch.next_slot, batch.lost, batch.hole) == ([0], 1, 0, True)
    assert ring.read(1).hole
    pack(ring, 1, 1)
    batch = ring.read(1)
    assert (batch.records["step"].tolist(), batch.lost, batch.hole) == ([1, 2], 0, False)


def test_a_hole_that_stays_is_given_up_and_counted(tmp_path):
    ring = make(tmp_path)
    write(ring, 0)
    draw_without_writing(ring)
    write(ring, 2)
    draw_without_writing(ring)
    write(ring, 4)
    batch = ring.read(0, give_up_on_holes=True)
    assert (batch.slots.tolist(), batch.next_slot, batch.lost) == ([0, 2, 4], 5, 2)


def test_giving_up_waits_once_for_a_hole_that_is_being_filled(tmp_path, monkeypatch):
    ring = make(tmp_path)
    draw_without_writing(ring)
    write(ring, 1)
    waits = []

    def others_run_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        pack(ring, 0, 0)
        draw_without_writing(ring)
        write(ring, 3)

    monkeypatch.setattr(time, "sleep", others_run_meanwhile)
    batch = ring.read(0, give_up_on_holes=True)
    assert (batch.records["step"].tolist(), batch.lost) == ([0, 1], 0)
    assert waits == [0.02]
    assert batch.next_slot == 2, "the hole that came meanwhile has its own grace"


def test_giving_up_without_holes_does_not_wait(tmp_path, monkeypatch):
    ring = make(tmp_path)
    write(ring, 0)
    monkeypatch.setattr(time, "sleep", pytest.fail)
    assert ring.read(0, give_up_on_holes=True).slots.tolist() == [0]
    assert ring.read(1, give_up_on_holes=True).next_slot == 1


def test_a_hole_that_was_lapped_is_lost(tmp_path):
    ring = make(tmp_path)
    draw_without_writing(ring)
    for number in range(1, 9):
        write(ring, number)
    batch = ring.read(0)
    assert (batch.slots.tolist(), batch.next_slot, batch.lost) == (list(range(1, 9)), 9, 1)


def test_a_thread_late_by_a_whole_lap_overwrites_one_record_and_no_more(tmp_path):
    ring = make(tmp_path)
    draw_without_writing(ring)
    for number in range(1, 10):
        write(ring, number)
    pack(ring, 0, 0)  # slot 8 was in that cell
    assert ring.read(5).next_slot == 8
    batch = ring.read(5, give_up_on_holes=True)
    assert (batch.slots.tolist(), batch.next_slot, batch.lost) == ([5, 6, 7, 9], 10, 1)


def test_a_torn_record_is_left_out(tmp_path):
    ring = make(tmp_path)
    for number in range(3):
        write(ring, number)
    pack(ring, 1, 77, begin=10)  # slot 9 had begun to overwrite slot 1 when its writer was killed
    batch = ring.read(0)
    assert (batch.slots.tolist(), batch.lost) == ([0, 2], 1)
    assert RingReader(ring.path).read().slots.tolist() == [0, 2]


def test_a_value_that_does_not_fit_costs_its_slot_and_what_was_in_the_cell(tmp_path):
    ring = make(tmp_path)
    for number in range(8):
        write(ring, number)
    with pytest.raises(struct.error):
        ring.write(-1, *[0] * 14)
    write(ring, 9)
    batch = ring.read(0, give_up_on_holes=True)
    assert (batch.slots.tolist(), batch.lost) == ([2, 3, 4, 5, 6, 7, 9], 3)


# -- stamping --------------------------------------------------------------------------------------


def test_stamps_reach_their_fields(tmp_path):
    ring = make(tmp_path)
    slot = ring.write(3, 2, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for value, field in enumerate(("ready", "launch", "start", "finish"), start=101):
        assert ring.stamp(slot, field, value)
    assert ring.stamper("finish")(slot, 105)
    record = ring.read(0).records[0]
    assert [int(record[f]) for f in ("ready", "launch", "start", "finish")] == [101, 102, 103, 105]
    assert record["step"] == 7


def test_flags_are_added(tmp_path):
    ring = make(tmp_path)
    slot = ring.write(3, 2, 1, RecordFlag.SYNCHRONOUS, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert ring.add_flags(slot, RecordFlag.FINISH_UNOBSERVABLE)
    record = ring.read(0).records[0]
    assert record["flags"] == RecordFlag.SYNCHRONOUS | RecordFlag.FINISH_UNOBSERVABLE
    assert (record["kind"], record["step"]) == (3, 7)


def test_a_stale_stamp_does_not_touch_the_record_that_came_after(tmp_path):
    ring = make(tmp_path)
    for number in range(9):
        write(ring, number)
    assert not ring.stamp(0, "finish", 99)
    assert not ring.add_flags(0, RecordFlag.FAILED)
    record = ring.read(8).records[0]
    assert (record["finish"], record["flags"]) == (0, 0)


def test_peek_sees_later_stamps_and_says_what_is_gone(tmp_path):
    ring = make(tmp_path)
    for number in range(10):
        write(ring, number)
    ring.stamp(4, "finish", 44)
    records, there = ring.peek(np.array([1, 4, 9]))
    assert there.tolist() == [False, True, True]
    assert records["finish"][1] == 44
    assert records["step"][2] == 9


def test_late_writes_and_stamps_are_harmless(tmp_path):
    ring = make(tmp_path)
    slot = write(ring, 1)
    late_write, late_stamp = ring.write, ring.stamper("finish")
    path = ring.path
    ring.close(remove=True)
    assert not path.exists()
    assert not ring.stamp(slot, "finish", 9)
    assert not ring.add_flags(slot, 1)
    del ring
    gc.collect()
    late_write(*[1] * 15)
    assert not late_stamp(slot, 9)


def test_closing_can_leave_the_file_for_others(tmp_path):
    ring = make(tmp_path)
    write(ring, 1)
    ring.close(remove=False)
    assert RingReader(ring.path).read().records["step"].tolist() == [1]


# -- threads, forks, kills -------------------------------------------------------------------------


def test_four_threads_and_a_reader_lose_nothing_in_a_ring_that_is_large_enough(tmp_path):
    ring = make(tmp_path, 8192)
    each = 1500

    def work(first: int) -> None:
        for number in range(first, first + each):
            ring.stamp(write(ring, number), "finish", number)

    threads = [threading.Thread(target=work, args=(n * each,)) for n in range(4)]
    for thread in threads:
        thread.start()
    steps, at = [], 0
    while at < 4 * each:
        batch = ring.read(at)
        assert batch.lost == 0
        assert_consistent(batch.records)
        steps += batch.records["step"].tolist()
        at = batch.next_slot
    for thread in threads:
        thread.join()
    assert sorted(steps) == list(range(4 * each))
    records, there = ring.peek(np.arange(4 * each))
    assert there.all()
    assert (records["finish"] == records["step"]).all()


def test_a_reader_that_is_too_slow_counts_every_record_once(tmp_path):
    ring = make(tmp_path, 16)
    each = 2000

    def work() -> None:
        for number in range(each):
            write(ring, number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    read = lost = at = 0
    while any(thread.is_alive() for thread in threads):
        batch = ring.read(at)
        assert_consistent(batch.records)
        read, lost, at = read + len(batch.records), lost + batch.lost, batch.next_slot
    batch = ring.read(at, give_up_on_holes=True)
    read, lost = read + len(batch.records), lost + batch.lost
    assert read + lost == batch.next_slot == 4 * each


FORK = """
import os, sys
from pathlib import Path
from overlapwatch.ring import Ring
ring, _ = Ring.create("ring", 8, (Path(sys.argv[1]) / "rings",), {})
slot = ring.write(3, 2, 1, 0, 1, *[0] * 10)
write, stamp, path = ring.write, ring.stamper("finish"), ring.path
child = os.fork()
if not child:
    write(3, 2, 1, 0, 2, *[0] * 10)
    kept = stamp(slot, 9) or ring.stamp(slot, "finish", 9) or ring.add_flags(slot, 1)
    ring.close(remove=True)
    os._exit(int(kept))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
batch = ring.read(0)
assert path.exists() and batch.records["step"].tolist() == [1], batch
assert batch.records["finish"][0] == 0 and stamp(slot, 9)
"""


def test_a_forked_child_leaves_the_ring_alone(tmp_path):
    subprocess.run([sys.executable, "-c", FORK, tmp_path], check=True, timeout=60, cwd=ROOT)


WRITE_UNTIL_KILLED = """
import itertools, sys, threading
from pathlib import Path
from overlapwatch.ring import Ring
ring, _ = Ring.create("ring", 256, (Path(sys.argv[1]) / "rings",), {"rank": 3})
numbers = itertools.count()
def work():
    for n in numbers:
        n &= 0xFFFF
        slot = ring.write(3, 2, 1, 0, n, n, n, 0, n, n, n, n, n, n, 0)
        if n == 5000:
            print("busy", flush=True)
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]
"""


def test_a_killed_process_leaves_whole_records(tmp_path):
    command = [sys.executable, "-c", WRITE_UNTIL_KILLED, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline() == b"busy\n"
        reader = RingReader(tmp_path / "rings" / "ring")
        for _ in range(50):
            assert_consistent(reader.read().records)  # while it writes
        process.send_signal(signal.SIGKILL)
    batch = reader.read()
    assert reader.about == {"rank": 3}
    assert len(batch.records) >= 250
    assert batch.lost == batch.next_slot - len(batch.records) > 0
    assert_consistent(batch.records)


# -- where it lies ---------------------------------------------------------------------------------


def test_the_file_is_ours_alone(tmp_path):
    ring = make(tmp_path)
    assert ring.path.stat().st_mode & 0o777 == 0o600
    assert ring.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_directory_leads_to_the_next(tmp_path, monkeypatch):
    real = os.posix_fallocate
    tried = []

    def first_is_full(descriptor, offset, size):
        tried.append(size)
        if len(tried) == 1:
            raise FULL_DEVICE
        real(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", first_is_full)
    ring, problems = Ring.create("ring", 8, (tmp_path / "a", tmp_path / "b"), ABOUT)
    assert problems == [f"no ring in {tmp_path / 'a'}: No space left on device"]
    assert ring.path == tmp_path / "b" / "ring"
    assert list((tmp_path / "a").iterdir()) == []


def test_a_really_full_file_system_is_noticed_before_it_is_mapped(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", small]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root to mount a small tmpfs")
    try:
        ring, problems = Ring.create("ring", 4096, (small, tmp_path / "b"), ABOUT)
        assert len(problems) == 1
        assert "No space left" in problems[0]
        assert ring.path == tmp_path / "b" / "ring"
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_unusable_directory_leads_to_private_memory(tmp_path):
    (tmp_path / "file").touch()
    ring, problems = Ring.create("ring", 8, (tmp_path / "file", tmp_path / "file" / "x"), ABOUT)
    assert len(problems) == 2
    assert ring.path is None
    write(ring, 5)
    assert ring.read(0).records["step"].tolist() == [5]
    ring.close(remove=True)


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    ring, problems = Ring.create("ring", 8, (tmp_path / "link",), ABOUT)
    assert ring.path is None
    assert "symbolic link" in problems[0]
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    ring, problems = Ring.create("ring", 8, (tmp_path / "open",), ABOUT)
    assert ring.path is None
    assert "other users may write" in problems[0]


def test_somebody_elses_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    ring, problems = Ring.create("ring", 8, (tmp_path / "theirs",), ABOUT)
    assert ring.path is None
    assert f"belongs to user {owner}" in problems[0]


def test_a_stale_ring_of_that_name_is_replaced_and_stays_with_who_mapped_it(tmp_path):
    old = make(tmp_path)
    write(old, 1)
    reader = RingReader(old.path)
    new = make(tmp_path)
    write(new, 2)
    assert old.stamp(0, "finish", 9)
    assert reader.read().records["step"].tolist() == [1]
    assert RingReader(new.path).read().records["step"].tolist() == [2]


@pytest.mark.parametrize("capacity", [0, 3, -8, MAX_CAPACITY * 2])
def test_odd_capacities_are_refused(tmp_path, capacity):
    with pytest.raises(ValueError, match="power of 2"):
        Ring.create("ring", capacity, (tmp_path,), {})


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_names_that_are_paths_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file name"):
        Ring.create(name, 8, (tmp_path,), {})


def test_a_long_description_moves_the_slots_and_a_huge_one_is_refused(tmp_path):
    ring, _ = Ring.create("ring", 8, (tmp_path / "r",), {"log": "x" * 5000})
    write(ring, 4)
    reader = RingReader(ring.path)
    assert len(reader.about["log"]) == 5000
    assert reader.read().records["step"].tolist() == [4]
    with pytest.raises(ValueError, match="too long"):
        Ring.create("ring", 8, (tmp_path,), {"log": "x" * 70_000})


def test_default_directories_prefer_the_chosen_one_and_end_in_the_temporary_one(tmp_path):
    places = default_directories(tmp_path)
    assert places[0] == tmp_path / f"overlapwatch-{os.getuid()}"
    assert len(set(default_directories())) == len(default_directories()) == len(places) - 1


# -- reading from outside --------------------------------------------------------------------------


def test_a_reader_follows_a_living_ring(tmp_path):
    ring = make(tmp_path)
    reader = RingReader(ring.path)
    assert reader.about == ABOUT
    assert reader.read().next_slot == 0
    for number in range(11):
        write(ring, number)
    batch = reader.read()
    assert batch.slots.tolist() == list(range(3, 11))
    assert (batch.next_slot, batch.lost) == (11, 3)
    ring.stamp(10, "finish", 5)
    assert reader.read().records["finish"][-1] == 5


@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (0, b"nothing", "not an overlapwatch ring"),
        (7, b"\x02", "another overlapwatch version"),
        (8, b"\xff\xff\xff\xff", "cut short or damaged"),
        (8, b"\x00\x00\x00\x00", "cut short or damaged"),
        (12, b"\x58", "another overlapwatch version"),
        (16, b"\x00\x01", "cut short or damaged"),
        (16, b"\x07", "cut short or damaged"),
        (24, b"\xff\xff", "cut short or damaged"),
        (28, b"\xff", "header is damaged"),
        (24, b"\x00\x00\x00\x00", "header is damaged"),
    ],
)
def test_what_is_not_a_whole_ring_is_refused_in_a_sentence(tmp_path, offset, new, message):
    path = make(tmp_path).path
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(new)] = new
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message):
        RingReader(path)


@pytest.mark.parametrize("size", [0, 10, 4095, 4096, 4700])
def test_a_ring_cut_short_is_refused(tmp_path, size):
    path = make(tmp_path).path
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError):
        RingReader(cut)


def test_an_absent_ring_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"nothing: cannot be read \(No such file"):
        RingReader(tmp_path / "nothing")
