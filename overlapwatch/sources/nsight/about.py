"""What the export says about itself -> the facts printed beside the numbers.

In: `Tables`. Out: versions, how graphs were traced, whether payloads were exported, which GPU is which.
Nothing else is read from these tables: profiles hold environments, command lines, paths and host
names, and those never reach a report. Of the environment only the two variables that decide overlap
are taken, and only where their value is a number.
"""

import re
from dataclasses import dataclass

from overlapwatch.sources.nsight.tables import Tables, text, whole

_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_DECIDING = re.compile(r'^(CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING)="?(\d{1,6})"?$')
_VERSION = re.compile(r"^[\w.+-]{1,40}$")


@dataclass(frozen=True, slots=True)
class About:
    """Facts of a file.

    Args:
        facts: to print.
        blobs: whether payloads were exported: None where the export does not say.
        gpus: (process number, CUDA device) -> name of the GPU.
        processes: process numbers by name, as `globalPid >> 24`.
    """

    facts: dict[str, str]
    blobs: bool | None
    gpus: dict[tuple[int, int], str]
    processes: dict[int, int]


def read_about(tables: Tables) -> About:
    """Return the facts."""
    export: dict[str, str] = {}
    for table in _EXPORT_TABLES:
        for name, value in tables.rows(table, ("name", "value")):
            export.setdefault(text(name), text(value))
    facts = {}
    for key, title in (
        ("EXPORT_PRODUCT_VERSION", "Nsight Systems"),
        ("EXPORT_SCHEMA_VERSION", "export schema"),
    ):
        if _VERSION.match(export.get(key, "")):
            facts[title] = export[key]
    for name, value in tables.rows("META_DATA_CAPTURE", ("name", "value")):
        if text(name) == "CUDA_GRAPH_TRACE_OPTIONS:MODE" and _VERSION.match(text(value)):
            facts["CUDA graphs traced"] = text(value).lower()
        elif text(name).endswith(":ENVIRONMENT_VARIABLE"):
            found = _DECIDING.match(text(value))
            if found:
                facts[found[1]] = found[2]
    for (epoch,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(epoch, int):
            facts["session start, UTC ns"] = str(epoch)
    blobs = {"true": True, "false": False}.get(export.get("EXPORT_PARAM_INCLUDE_BLOBS", ""))
    return About(facts, blobs, _gpus(tables), _processes(tables))


def _gpus(tables: Tables) -> dict[tuple[int, int], str]:
    """Return the GPU of each process's CUDA device: with one visible GPU each, all are device 0."""
    cards = {}
    for number, name, uuid in tables.rows("TARGET_INFO_GPU", ("id", "name", "uuid")):
        cards[number] = " ".join(filter(None, (text(name), text(uuid))))
    gpus = {}
    for pid, device, gpu, uuid in tables.rows(
        "TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId", "uuid")
    ):
        if whole(device) < 0:
            continue
        title = cards.get(gpu) or text(uuid)
        gpus[max(whole(pid), 0), whole(device)] = title
    return gpus


def _processes(tables: Tables) -> dict[int, int]:
    """Return the operating system's number of each process, by `globalPid >> 24`."""
    found = tables.rows("PROCESSES", ("globalPid", "pid"))
    return {
        owner >> 24: pid for owner, pid in found if isinstance(owner, int) and isinstance(pid, int)
    }
