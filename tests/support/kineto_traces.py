"""Small Kineto traces for tests: events as a profiler writes them, times in µs."""

import gzip
import json
from pathlib import Path

PID = 77


def span(cat, name, ts, dur, *, pid=PID, tid=PID, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def kernel(name, ts, dur, *, stream=7, device=0, correlation=0, **args):
    return span(
        "kernel", name, ts, dur, pid=device, tid=stream,
        device=device, stream=stream, correlation=correlation, **args,
    )  # fmt: skip


def copy(ts, dur, *, stream=7, device=0, correlation=0, name="Memcpy DtoD (Device -> Device)"):
    return span(
        "gpu_memcpy", name, ts, dur, pid=device, tid=stream,
        device=device, stream=stream, correlation=correlation,
    )  # fmt: skip


def launch(ts, correlation, *, dur=1, tid=PID):
    return span("cuda_runtime", "cudaLaunchKernel", ts, dur, tid=tid, correlation=correlation)


def call(ts, dur, collective, sent, received, *, tid=PID, ranks=2, **args):
    told = {
        "Collective name": collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "dtype": "Float",
        "Group size": ranks,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
    }
    return span("cpu_op", "record_param_comms", ts, dur, tid=tid, **{**told, **args})


def text(events, **about):
    about = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, **about}
    return json.dumps({**about, "traceEvents": events})


def write(path: Path, events, **about) -> Path:
    data = text(events, **about).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
