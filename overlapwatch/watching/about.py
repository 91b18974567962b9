"""What a log says of the process that wrote it: who, with what, and the variables that decide overlap.

Only variables on the list below are copied; an environment holds secrets.
"""

import itertools
import os
import platform
import secrets
import socket
from collections.abc import Mapping
from dataclasses import fields

import torch
import torch.distributed as dist

import overlapwatch
from overlapwatch.clock import HostClock
from overlapwatch.hooks.recorder import log
from overlapwatch.log.frames import ClockPair, Header
from overlapwatch.settings import Settings
from overlapwatch.watching.devices import Chosen

DECIDES_OVERLAP = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CTA_POLICY",
    "NCCL_IB_DISABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_NCCL_HIGH_PRIORITY",
)


def versions() -> dict[str, str]:
    """Return the versions that matter, of what is there."""
    found = {
        "overlapwatch": overlapwatch.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if torch.cuda.is_available() and dist.is_nccl_available():
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


_runs = itertools.count()
"""One for each watch of this process: a second one, of a second training, is a run of its own."""


def agree_on_run_id() -> str:
    """Return an id that all ranks of this run share, without a collective and without waiting.

    The first rank to ask the job's own store leaves its proposal there, the others take it. Without a usable store the
    launcher's run id serves, and without that each rank is a run of its own.
    """
    proposal = secrets.token_hex(4)
    number = next(_runs)
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        winner = store.compare_set(f"overlapwatch/run/{number}", "", proposal)
        return bytes(winner).decode() or proposal
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        log.debug("no run id from the job's store: %s", error)
    launcher = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if launcher == "none":
        return proposal
    return f"{launcher}-{number}" if number else launcher


def header(
    settings: Settings,
    *,
    rank: int,
    world: int,
    run_id: str,
    mode: str,
    chosen: Chosen,
    ring: str,
    facts: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> Header:
    """Return the first frame of a log; `facts` are options of the framework that decide overlap, as variables do."""
    return Header(
        rank=rank,
        world=world,
        local_rank=int(environ.get("LOCAL_RANK", rank)),
        host=socket.gethostname(),
        pid=os.getpid(),
        run_id=run_id,
        created=ClockPair(*HostClock().pair()),
        mode=mode,
        device=chosen.device,
        ring=ring,
        versions=versions(),
        settings={
            **{f.name: str(getattr(settings, f.name)) for f in fields(settings)},
            "event_policy": f"{chosen.plan.policy.value}: {chosen.plan.because}",
        },
        environment={
            **{name: environ[name] for name in DECIDES_OVERLAP if name in environ},
            **facts,
        },
    )
