"""Writes Nsight Systems exports whose answers are known by construction.

The case has the structure of a published profile of a Megatron job: eight ranks, of which devices 1
to 7 were recorded; five steps; per rank and step 28 AllGather (27 of 256 MiB and one of 229.3 MiB,
as the calls were given them), 18 ReduceScatter of 256 MiB and 2 AllReduce of 4 bytes; 273 exposed
segments a device; 16 % of the communication hidden in forward, 77 % in backward. NCCL calls carry
payloads on all eight ranks.

A step is a row of blocks. Each block is compute alone, then one collective with compute under part
of it (h), so the answer of each block is known: overlap h, exposed the rest, in 0, 1 or 2 segments.

    compute        alone   h            alone  .. h ..         exposed in 1 segment, then in 2
    communication          [ D     ]           [  D      ]

Compute can be cut into `split` kernels that touch, which changes the number of rows and no answer.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.nsight_export import LEAD_NS, Export, Process, init_blob, write_schemas

MIB = 1 << 20
LARGE, LAST, TINY = 256 * MIB, 240_438_528, 4
DATA_COMM, WORLD_COMM = 0xA1B2C3D4E5F60718, 0x1122334455667788
SEGMENTS = (54, 54, 55, 55, 55)
FORWARD_HIDDEN, BACKWARD_HIDDEN = 16, 77  # %
_GAP_NS = 400_000_000
_ALONE_NS = 9_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How large to make it; the defaults are the published case.

    Args:
        ranks, devices, steps: ranks that call NCCL, devices that were recorded, steps.
        split: kernels that each stretch of compute is cut into.
        first_ns: when the first step begins.
        era: whose schema: "2022" or "2026".
        blobs: whether payloads are exported.
        annotated: whether there are NVTX ranges of the job's own.
        layers: further nested ranges on the host for each block, as frameworks add them.
    """

    ranks: int = 8
    devices: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    steps: int = 5
    split: int = 1
    first_ns: int = 39_964_000_000
    era: str = "2026"
    blobs: bool = True
    annotated: bool = True
    layers: int = 0


@dataclass(slots=True)
class Answer:
    """What one device's timeline must tell, ns."""

    first_ns: int = 0
    last_ns: int = 0
    compute_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0
    segments: int = 0
    phases: dict[str, tuple[int, int]] = field(default_factory=dict)  # (communication, overlap)
    kinds: dict[str, int] = field(default_factory=dict)  # kernels
    given_bytes: dict[str, int] = field(default_factory=dict)
    kernels: int = 0


@dataclass(frozen=True, slots=True)
class _Block:
    what: str
    phase: str
    length: int
    hidden: int
    segments: int
    size: int


def blocks(rank: int, step: int) -> list[_Block]:
    """Return the blocks of a step, in order. Lengths differ by rank and step, shares do not."""
    base = 5_400_000 + 10_000 * rank + 1_000 * step
    forward = [
        _Block(
            "AllGather",
            "forward",
            base + 200 * at,
            (base + 200 * at) * FORWARD_HIDDEN // 100,
            1,
            LARGE,
        )
        for at in range(14)
    ]
    names = ["AllGather"] * 14 + ["ReduceScatter"] * 18
    lengths = [base + 300 * at for at in range(len(names))]
    twice = SEGMENTS[step % len(SEGMENTS)] - 2 - 46 + 2  # two blocks are hidden whole
    total = sum(lengths) * BACKWARD_HIDDEN // 100
    hidden = [length * 75 // 100 for length in lengths]
    hidden[0], hidden[1] = lengths[0], lengths[1]
    left = total - sum(hidden)  # spread over the others, the last takes what is over
    for at in range(2, len(hidden)):
        hidden[at] += left // (len(hidden) - 2)
    hidden[-1] += total - sum(hidden)
    segments = [0, 0] + [2] * twice + [1] * (len(names) - 2 - twice)
    sizes = [LARGE] * 13 + [LAST] + [LARGE] * 18
    backward = [
        _Block(what, "backward", *rest)
        for what, *rest in zip(names, lengths, hidden, segments, sizes, strict=True)
    ]
    end = [_Block("AllReduce", "optimizer", 30_000 + 100 * rank, 0, 1, TINY) for _ in range(2)]
    return [*forward, *backward, *end]


_KERNELS = {
    "AllGather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "AllReduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
}
_ALONE = {
    "forward": "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
    "backward": "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>(Flash_bwd_params)",
    "optimizer": "void multi_tensor_apply_kernel<AdamFunctor>(long)",
}
_UNDER = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"


def write_megatron(path: Path, shape: Shape = Shape()) -> dict[int, Answer]:
    """Write the case into one file; return the answer of each recorded device."""
    export = Export(path, shape.era, blobs=shape.blobs)
    answers = {rank: _write_rank(export, shape, rank) for rank in range(shape.ranks)}
    _write_about(export, shape, max(answer.last_ns for answer in answers.values()))
    export.close()
    return {rank: answer for rank, answer in answers.items() if rank in shape.devices}


def write_megatron_files(directory: Path, shape: Shape = Shape()) -> dict[int, Answer]:
    """Write the case into one file a rank, `rank0.sqlite` and so on."""
    answers = {}
    for rank in range(shape.ranks):
        export = Export(directory / f"rank{rank}.sqlite", shape.era, blobs=shape.blobs)
        answers[rank] = _write_rank(export, shape, rank)
        _write_about(export, shape, answers[rank].last_ns)
        export.close()
    return {rank: answer for rank, answer in answers.items() if rank in shape.devices}


def _write_about(export: Export, shape: Shape, last_ns: int) -> None:
    if shape.blobs and shape.era != "2022":
        write_schemas(export, shape.ranks)
    end = last_ns + 10**9
    export.add("ANALYSIS_DETAILS", globalVid=1 << 48, duration=end, startTime=0, stopTime=end)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_764_400_000 * 10**9)
    for name, value in (
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
        ("PROCESS_0:COMMAND", "python train.py --api-key secret-argument"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WANDB_API_KEY="secret-variable"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'CUDA_DEVICE_MAX_CONNECTIONS="1"'),
    ):
        export.add("META_DATA_CAPTURE", name=name, value=value)


def _write_rank(export: Export, shape: Shape, rank: int) -> Answer:
    process = Process(export, 1000 + rank, rank, recorded=rank in shape.devices)
    export.add("PROCESSES", globalPid=process.global_pid, pid=process.pid, name="python3")
    export.add("TARGET_INFO_GPU", id=rank, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{rank:04d}")
    export.add(
        "TARGET_INFO_CUDA_DEVICE", gpuId=rank, cudaId=rank, pid=process.pid, uuid=f"GPU-{rank:04d}"
    )
    process.domain()
    for at, comm in enumerate((DATA_COMM, WORLD_COMM)):
        process.call(
            "CommInitRankConfig",
            10_000 * (at + 1),
            10_000 * (at + 1) + 5_000,
            payload=init_blob(comm, shape.ranks, rank, rank),
        )
    answer = Answer(first_ns=shape.first_ns)
    now = shape.first_ns
    for step in range(shape.steps):
        now = _write_step(process, shape, rank, step, now, answer) + _GAP_NS
    return answer


def _write_step(
    process: Process, shape: Shape, rank: int, step: int, now: int, answer: Answer
) -> int:
    begun, phase, phase_begun = now, "", now
    spans: list[tuple[str, int, int]] = []
    for at, block in enumerate(blocks(rank, step)):
        if block.phase != phase:
            if phase == "backward":
                # The last backward anchor ends behind the last collective, so that all are before it.
                _compute(process, shape, _ALONE[phase], now, now + 10_000, answer)
                now += 10_000
            if phase:
                spans.append((phase, phase_begun, now))
            phase, phase_begun = block.phase, now
        spans.append((f"layers.{at}", now, now + _ALONE_NS + block.length))
        now = _write_block(process, shape, block, now, answer, at)
    spans += [(phase, phase_begun, now), (f"step {step}", begun, now)]
    if shape.annotated:
        for name, start, end in spans:
            # 100 ns of host time lie before the first launch inside; outer ranges reach further.
            outer = {"layers": 0, "step ": 2}.get(name[:6] if name[:5] != "step " else "step ", 1)
            process.span(
                name, start - LEAD_NS - 100 * (outer + 1), end - LEAD_NS - 100 * (2 - outer) - 100
            )
    return now


def _write_block(
    process: Process, shape: Shape, block: _Block, now: int, answer: Answer, at: int
) -> int:
    _compute(process, shape, _ALONE[block.phase], now, now + _ALONE_NS, answer)
    start = now + _ALONE_NS
    end = start + block.length
    before = (block.length - block.hidden) // 2 if block.segments == 2 else 0
    if block.hidden:
        _compute(process, shape, _UNDER, start + before, start + before + block.hidden, answer)
    _collective(process, block, start, end)
    answer.last_ns = end
    answer.communication_ns += block.length
    answer.overlap_ns += block.hidden
    answer.segments += block.segments
    told, hidden = answer.phases.get(block.phase, (0, 0))
    answer.phases[block.phase] = told + block.length, hidden + block.hidden
    answer.kinds[block.what] = answer.kinds.get(block.what, 0) + 1
    answer.given_bytes[block.what] = answer.given_bytes.get(block.what, 0) + block.size
    answer.kernels += 1
    for depth in range(shape.layers):
        host = start - LEAD_NS - 50
        process.span(
            f"aten::op{depth % 40}, op_id = {answer.kernels * 100 + depth}",
            host - _ALONE_NS // 2 + depth * 20,
            host - _ALONE_NS // 2 + 20_000 - depth * 20,
        )
    return end


def _collective(process: Process, block: _Block, start: int, end: int) -> None:
    host = start - LEAD_NS
    comm = WORLD_COMM if block.what == "AllReduce" else DATA_COMM
    if block.what == "ReduceScatter":  # in a group of its own, as a coalescing manager makes it
        process.call("GroupStart", host - 40, host - 30)
        process.call(block.what, host - 25, host - 15, comm, block.size)
        process.call("GroupEnd", host - 10, host + 5_000)
    else:
        process.call(block.what, host - 10, host + 5_000, comm, block.size)
    correlation = process.launch(host, name="cudaLaunchKernelExC_v11060")
    process.kernel(_KERNELS[block.what], start, end, stream=20, correlation=correlation)


def _compute(
    process: Process, shape: Shape, name: str, start: int, end: int, answer: Answer
) -> None:
    """Add compute without a gap, in `split` kernels."""
    answer.compute_ns += end - start
    answer.last_ns = max(answer.last_ns, end)
    answer.kernels += shape.split
    if shape.split == 1:
        process.kernel(name, start, end)
        return
    export, words = process.export, process.export.string(name)
    edges = [start + (end - start) * at // shape.split for at in range(shape.split + 1)]
    first = process.correlation + 1
    process.correlation += shape.split
    call = export.string("cudaLaunchKernel_v7000")
    tid, pid, device = process.global_tid, process.global_pid, process.device
    export.add_many(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
        (
            (at - LEAD_NS, at - LEAD_NS + 1, 0, tid, first + number, call, 0)
            for number, at in enumerate(edges[:-1])
        ),
    )
    if process.recorded:
        export.add_many(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            (
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "correlationId",
                "globalPid",
                "demangledName",
                "shortName",
                "registersPerThread",
                "gridX",
                "gridY",
                "gridZ",
                "blockX",
                "blockY",
                "blockZ",
            ),
            (
                (
                    low,
                    high,
                    device,
                    1,
                    7,
                    first + number,
                    pid,
                    words,
                    words,
                    64,
                    128,
                    1,
                    1,
                    256,
                    1,
                    1,
                )
                for number, (low, high) in enumerate(pairwise(edges))
            ),
        )


def split_for(kernels: int, shape: Shape = Shape()) -> int:
    """Return the `split` that makes about so many kernels."""
    stretches = sum(1 + bool(block.hidden) for block in blocks(1, 0)) + 1
    return max(1, round(kernels / (len(shape.devices) * shape.steps * stretches)))
