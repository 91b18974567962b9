"""Dumps of PyTorch's Flight Recorder: read as plain values only, whatever a file holds."""

import json
import os
import pickle
import struct
from pathlib import Path

import pytest

from overlapwatch.errors import InputError
from overlapwatch.sources import open_trace
from overlapwatch.sources.flight_recorder import is_flight_recorder, open_flight_recorder
from overlapwatch.timeline.issued import ANY_SIZE, GroupKey
from overlapwatch.vocabulary import CollectiveKind


def entry(
    sequence=1,
    name="nccl:all_reduce",
    sent=((10,),),
    got=None,
    *,
    group=("0", "default_pg"),
    **fields,
):
    """One entry as PyTorch 2.13 writes it."""
    got = sent if got is None else got
    return {
        "record_id": sequence - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": 1_795_994_615_860_004_559,
        "input_sizes": [list(shape) for shape in sent],
        "input_dtypes": ["Float"] * len(sent),
        "output_sizes": [list(shape) for shape in got],
        "output_dtypes": ["Float"] * len(got),
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}],
        **fields,
    }  # fmt: skip


def dump(*entries, **fields):
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
        "entries": list(entries),
        **fields,
    }


def write(path: Path, value, *, protocol=2) -> Path:
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def read(tmp_path, *entries, **fields):
    return open_flight_recorder(write(tmp_path / "nccl_trace_rank_3", dump(*entries, **fields)))


def told(issued, group="default"):
    (rows,) = (g.rows for key, g in issued.groups.items() if key.name == group)
    return [(int(r["sequence"]), CollectiveKind(r["kind"]).title, int(r["size"])) for r in rows]


def test_what_a_dump_says(tmp_path) -> None:
    issued = read(tmp_path, entry(1), entry(2, sent=((3, 2), (4,))), entry(1, group=("1", "pair")))
    assert issued.rank == 3
    assert (issued.source, issued.unit) == ("flight recorder", "elements")
    assert told(issued) == [(1, "AllReduce", 10), (2, "AllReduce", 10)]
    assert told(issued, "pair (1)") == [(1, "AllReduce", 10)]
    assert GroupKey("default", (0, 1, 2, 3)) in issued.groups
    assert set(issued.texts.values()) == {"Float"}
    assert [group.last for group in issued.groups.values()] == [2, 1]


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("gloo:all_reduce", "AllReduce", 6),
        ("nccl:allreduce_coalesced", "AllReduce", 6),
        ("nccl:_all_gather_base", "AllGather", 8),
        ("nccl:all_gather_into_tensor_coalesced", "AllGather", 8),
        ("nccl:_reduce_scatter_base", "ReduceScatter", 6),
        ("nccl:reduce_scatter_tensor_coalesced", "ReduceScatter", 6),
        ("nccl:all_to_all", "AllToAll", ANY_SIZE),
        ("nccl:broadcast", "Broadcast", 6),
        ("nccl:reduce", "Reduce", 6),
        ("nccl:scatter", "Scatter", 8),
        ("nccl:gather", "Gather", 6),
        ("nccl:all_reduce_barrier", "Barrier", ANY_SIZE),
        ("nccl:brand_new", "Unknown", ANY_SIZE),
    ],
)
def test_kinds_and_the_size_on_which_all_ranks_agree(tmp_path, name, kind, size) -> None:
    issued = read(tmp_path, entry(1, name, sent=((3, 2),), got=((8,),)))
    assert told(issued) == [(1, kind, size)]
    assert ("brand_new" in issued.texts.values()) == (kind == "Unknown")


def test_a_coalesced_batch_is_one_collective(tmp_path) -> None:
    batch = [entry(1, "nccl:_all_gather_base", got=((n,),)) for n in (4, 4, 8)]
    issued = read(tmp_path, *batch, entry(1, "nccl:coalesced", sent=()), entry(2))
    assert told(issued) == [(1, "Unknown", ANY_SIZE), (2, "AllReduce", 10)]
    assert "coalesced: AllGather of 4 ×2, AllGather of 8 ×1" in issued.texts.values()


def test_point_to_point_is_counted_only(tmp_path) -> None:
    issued = read(tmp_path, entry(1), entry(7, "nccl:send 0->1", is_p2p=True))
    assert told(issued) == [(1, "AllReduce", 10)]
    assert issued.point_to_point == 1


def test_overwritten_entries_are_told(tmp_path) -> None:
    issued = read(tmp_path, entry(601), entry(602))
    assert "600 earlier entries were overwritten" in issued.notes[0]
    assert told(issued)[0][0] == 601


def test_an_empty_dump_says_why(tmp_path) -> None:
    issued = read(tmp_path)
    assert "TORCH_FR_BUFFER_SIZE" in issued.notes[0]
    assert issued.end_unknown


def test_json_says_the_same(tmp_path) -> None:
    entries = [entry(1), entry(2, "nccl:broadcast"), entry(1, group=("1", "undefined"))]
    path = tmp_path / "fr_3.json"
    path.write_text(json.dumps(dump(*entries), sort_keys=True))
    assert is_flight_recorder(path)
    from_json, from_pickle = open_flight_recorder(path), read(tmp_path, *entries)
    assert from_json.rank == from_pickle.rank == 3
    assert [*from_json.groups] == [*from_pickle.groups]
    for key, group in from_json.groups.items():
        assert group.rows.tolist() == from_pickle.groups[key].rows.tolist()
    assert "group 1" in {key.name for key in from_json.groups}


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(tmp_path, protocol) -> None:
    path = write(tmp_path / "rank_0", dump(entry(1)), protocol=protocol)
    if protocol < 2:  # PyTorch writes 2; the older ones are text and have no mark of their own
        assert not is_flight_recorder(path)
    else:
        assert told(open_flight_recorder(path)) == [(1, "AllReduce", 10)]


def test_a_newer_format_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(InputError, match=r"format 3; .* upgrade"):
        read(tmp_path, entry(1), version="3.0")


def test_what_only_looks_like_a_dump(tmp_path) -> None:
    for value in ([1, 2], {"a": 1}, {"entries": 3}):
        with pytest.raises(InputError, match="not a Flight Recorder dump"):
            open_flight_recorder(write(tmp_path / "rank_0", value))


def test_a_report_of_a_dump_says_what_it_is_good_for(tmp_path) -> None:
    path = write(tmp_path / "rank_0", dump(entry(1)))
    with pytest.raises(InputError, match="overlapwatch order"):
        open_trace(path)


def test_a_trace_with_groups_is_no_dump(tmp_path) -> None:
    path = tmp_path / "trace.json"
    about = {"backend": "nccl", "pg_config": [{"pg_name": "0"}], "nccl_version": "2.27"}
    path.write_text(json.dumps({"distributedInfo": about, "traceEvents": []}))
    assert not is_flight_recorder(path)
    data = Path(__file__).parents[1] / "data" / "kineto"
    assert not any(is_flight_recorder(file) for file in data.rglob("*") if file.is_file())


# -- files that are made to harm ------------------------------------------------------------------


class Evil:
    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("call", [(os.mkdir, ("harmed",)), (eval, ("1 / 0",))])
def test_code_is_never_run(tmp_path, monkeypatch, call, protocol) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "rank_0", dump(entry(1), more=Evil(*call)), protocol=protocol)
    with pytest.raises(InputError, match=r"refused: .* would run code"):
        open_flight_recorder(path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "instructions",
    [
        b"cos\nsystem\n(S'touch harmed'\ntR.",  # GLOBAL, REDUCE
        b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"(S'touch harmed'\nios\nsystem\n.",  # INST
        b"\x82\x01.",  # EXT1
        b"Pname\n.",  # PERSID
        b"}(cos\nsystem\nS'touch harmed'\no.",  # OBJ
        b"}}b.",  # BUILD
    ],
)
def test_every_instruction_that_reaches_code_is_refused(
    tmp_path, monkeypatch, instructions
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x04" + instructions)
    with pytest.raises(InputError, match=r"refused: .* would run code"):
        open_flight_recorder(path)
    assert not (tmp_path / "harmed").exists()


def test_a_made_up_place_in_the_memo_allocates_nothing(tmp_path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x02}r" + struct.pack("<I", (1 << 32) - 1) + b".")
    with pytest.raises(InputError, match="exhaust the memory"):
        open_flight_recorder(path)


def test_cut_short_or_changed_anywhere_it_is_one_sentence(tmp_path) -> None:
    whole = pickle.dumps(dump(entry(1), entry(2)), 2)
    path = tmp_path / "rank_0"
    outcomes = set()
    for place in range(1, len(whole)):
        flipped = bytes([whole[place] ^ 0x55])
        for data in (whole[:place], whole[:place] + flipped + whole[place + 1 :]):
            path.write_bytes(data)
            try:
                open_flight_recorder(path)
            except InputError as error:
                outcomes.add("refused" if str(path) in str(error) else "without a path")
            else:
                outcomes.add("read")
    assert outcomes == {"refused", "read"}  # a changed letter in a name is no damage


def test_damaged_json_is_one_sentence(tmp_path) -> None:
    whole = json.dumps(dump(entry(1))).encode()
    path = tmp_path / "rank0.json"
    for place in range(1, len(whole), 7):
        path.write_bytes(whole[:place])
        with pytest.raises(InputError, match="damaged or cut short"):
            open_flight_recorder(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"collective_seq_id": -1},
        {"collective_seq_id": "1"},
        {"process_group": None, "pg_id": None},
        {"input_sizes": "many"},
        {"input_sizes": [[-5]]},
        {"input_sizes": [[1 << 40, 1 << 40]]},
        {"input_dtypes": 7},
        {"profiling_name": None},
        {"process_group": []},
    ],
)
def test_values_that_make_no_sense_are_not_taken_for_numbers(tmp_path, changes) -> None:
    issued = read(tmp_path, {**entry(1), **changes}, entry(2))
    rows = [row for group in issued.groups.values() for row in group.rows.tolist()]
    assert all(row[2] in {10, ANY_SIZE} for row in rows)
    assert len(rows) + issued.unnumbered == 2
