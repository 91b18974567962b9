"""Inputs for the benchmark of sources: Nsight Systems exports and Kineto traces of a chosen size.

    python _bench_sources_data.py export|exports|trace|traces PATH SIZE [TRACE TO REPEAT]

It runs as a process of its own: what a process once took counts as the memory of everything that it starts.
The last line of its output is JSON.
"""

import gzip
import json
import re
import sqlite3
import sys
from pathlib import Path

from _bench import ROOT

from tests.support.nsight_case import Shape, split_for, write_megatron, write_megatron_files

DEVICES = tuple(range(8))
_TRACES = (ROOT / "tests/data/kineto/a100_ddp_resnet_rank0of2.json.gz",)

# nsys-ai asks for these columns of every real export; the synthetic one leaves them out.
_WANTED_BY_PEERS = ("smCount", "totalMemory", "chipName", "memoryBandwidth")

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
NEEDED = {
    KERNELS: [
        "start",
        "end",
        "globalPid",
        "deviceId",
        "contextId",
        "streamId",
        "correlationId",
        "demangledName",
        "graphNodeId",
    ],
    CALLS: ["start", "end", "globalTid", "correlationId"],
}
"""What a report needs of the two large tables: kernels, and which call launched each collective."""


def export(path: Path, kernels: int) -> int:
    """Write an export of 8 devices with about so many kernels; return how many they are."""
    shape = Shape(devices=DEVICES)
    shape = Shape(devices=DEVICES, split=split_for(kernels, shape))
    answers = write_megatron(path, shape)
    db = sqlite3.connect(path)
    for column in _WANTED_BY_PEERS:
        db.execute(f"ALTER TABLE TARGET_INFO_GPU ADD COLUMN {column}")
    db.commit()
    db.close()
    return sum(one.kernels for one in answers.values())


def exports(directory: Path, kernels: int) -> None:
    """Write 8 exports of one device each, with about so many kernels in all."""
    directory.mkdir()
    shape = Shape(devices=DEVICES)
    write_megatron_files(directory, Shape(devices=DEVICES, split=split_for(kernels, shape)))


# -- Kineto ------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    rb'("ts": |"correlation": |"External id": |"Ev Idx": |ProfilerStep#|"id": )([1-9]\d*)'
)
_RANK = re.compile(rb'"rank": \d+, "world_size": \d+')
_LENGTH = re.compile(rb'"ts": (\d+)[\d.]*, "dur": (\d+)')


def recorded(given: str = "") -> tuple[str, bytes]:
    """Return name and text of a real trace: the one given, else the largest that is there."""
    source = Path(given) if given else next(one for one in _TRACES if one.exists())
    raw = source.read_bytes()
    text = gzip.decompress(raw) if source.suffix == ".gz" else raw
    return source.name.partition(".")[0], text


def trace(path: Path, text: bytes, megabytes: int) -> int:
    """Write a trace of about so many MB: the events of a real one, again and again, later and later.

    Times, ids and step numbers of each repetition lie behind those of the one before.

    Returns:
        How many times it holds the original.

    """
    opening = text.index(b"[", text.index(b'"traceEvents"')) + 1
    head, body, tail = text[:opening], text[opening:], b""
    closing = body.rindex(b"]")
    body, tail = body[:closing].rstrip(), body[closing:]
    times = [(int(ts), int(ts) + int(dur)) for ts, dur in _LENGTH.findall(body)]
    span_us = max(end for _, end in times) - min(start for start, _ in times) + 10_000
    # Text, key, number, text, ... : only every third piece differs from one repetition to the next.
    pieces = _NUMBER.split(body)
    keys, numbers = pieces[1::3], [int(number) for number in pieces[2::3]]
    ids = {b'"ts": ': span_us, b"ProfilerStep#": 100}
    shifts = [ids.get(key, 10_000_000) for key in keys]
    count = max(1, round(megabytes * 1e6 / len(body)))
    with path.open("wb") as out:
        out.write(head)
        for again in range(count):
            pieces[2::3] = [
                b"%d" % (number + again * shift)
                for number, shift in zip(numbers, shifts, strict=True)
            ]
            out.write((b"," if again else b"") + b"".join(pieces))
        out.write(tail)
    return count


def traces(directory: Path, text: bytes, megabytes: int) -> None:
    """Write 8 traces, ranks 0 to 7, of about so many MB in all."""
    directory.mkdir()
    for rank in range(8):
        named = _RANK.sub(rb'"rank": %d, "world_size": 8' % rank, text, count=1)
        trace(directory / f"trace_rank{rank}.json", named, megabytes // 8)


def main() -> None:
    what, place, size, *given = sys.argv[1:]
    path, amount = Path(place), int(size)
    told: dict[str, object] = {}
    if what == "export":
        told["kernels"] = export(path, amount)
    elif what == "exports":
        exports(path, amount)
    else:
        told["name"], text = recorded(*given)
        if what == "trace":
            told["count"] = trace(path, text, amount)
        else:
            traces(path, text, amount)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
