"""Which kernels communicate: a table of names, as data, to be read and extended.

In: nothing. Out: `RULES`, tried in order on the name of a kernel; the first that is found in the name decides. A name
that no rule knows is computation, so a library that nobody has told us of shows up as compute: `--comm-pattern` adds
rules. Streams decide nothing: tensor-parallel collectives run on the compute stream.

Names are the demangled ones that CUPTI and roctracer give, with `{anonymous}` for an anonymous namespace, so that the
first bracket begins the arguments or template arguments. Where one is generic (`ncclDevKernel_Generic`) the kind is
not in the name; a source may know it from the call that launched the kernel.
"""

from dataclasses import dataclass
from enum import IntEnum

from overlapwatch.vocabulary import CollectiveKind as Kind


class KernelClass(IntEnum):
    """Which lane a kernel belongs to."""

    COMPUTE = 0
    COMMUNICATION = 1
    FUSED = 2  # computes and communicates at once: told beside both lanes, in neither


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table.

    Args:
        pattern: regular expression, case-sensitive, searched for in the name.
        kernel: the class of a kernel with such a name.
        kind: what it does; UNKNOWN asks the words of the name itself (`timeline.classify.kind_of`).
        source: whose kernels these are.
    """

    pattern: str
    kernel: KernelClass
    kind: Kind
    source: str


_COMPUTE, _COMMUNICATION, _FUSED = KernelClass
_TOLD_BY_NAME = Kind.UNKNOWN

RULES: tuple[Rule, ...] = (
    # Inductor names a kernel after the operators it fused; `all_gather_into_tensor` or `wait_tensor` in such a name is
    # where its input came from, not what it does.
    Rule(r"^triton_[a-z]+_fused_", _COMPUTE, Kind.UNKNOWN, "torch.compile (Inductor)"),
    # -- NCCL and its relatives ---------------------------------------------------------------
    # 2.16-2.18 ncclKernel_AllReduce_RING_LL_Sum_float, since 2.19 ncclDevKernel_AllReduce_Sum_f32_RING_LL,
    # symmetric ncclSymDevKernel_* (2.27) and ncclSymkDevKernel_* (2.28), before 2.5 ncclAllReduceRingLLKernel_sum_f32;
    # RCCL keeps the names, and has ncclDevKernel_Generic, Generic_1, Generic_4.
    Rule(r"\bnccl(Sym\w{0,2})?(Dev)?Kernel_", _COMMUNICATION, _TOLD_BY_NAME, "NCCL, RCCL"),
    Rule(r"\bnccl[A-Z]\w*Kernel_", _COMMUNICATION, _TOLD_BY_NAME, "NCCL before 2.7"),
    Rule(r"\bmscclKernel_", _COMMUNICATION, Kind.UNKNOWN, "RCCL with MSCCL schedules"),
    Rule(r"\bmscclpp::|\bmscclpp_", _COMMUNICATION, _TOLD_BY_NAME, "MSCCL++"),
    Rule(r"^[^(<]*\bnccl", _COMMUNICATION, _TOLD_BY_NAME, "NCCL, whatever comes next"),
    # Not NCCL's own, but handed its device interface (2.28): it may well compute besides.
    Rule(r"\bncclDevComm\b|\bncclWindow", _FUSED, Kind.UNKNOWN, "NCCL device API"),
    # hcom_allReduce__445_2: operation, hash of the group, sequence.
    Rule(r"^hcom_", _COMMUNICATION, _TOLD_BY_NAME, "HCCL"),
    Rule(r"(?i)^(all\w+|reduce\w+|broadcast|send|receive)AicpuKernel", _COMMUNICATION, _TOLD_BY_NAME, "HCCL, AI CPU"),
    Rule(r"\bone?ccl(::|_)", _COMMUNICATION, _TOLD_BY_NAME, "oneCCL"),
    # -- expert parallelism: a dispatch or combine is an all-to-all ------------------------------
    # Where tokens go is worked out locally.
    Rule(r"\bget_dispatch_layout\b", _COMPUTE, Kind.UNKNOWN, "DeepEP"),
    Rule(r"(intranode|internode|internode_ll)::barrier\b", _COMMUNICATION, Kind.BARRIER, "DeepEP"),
    Rule(
        r"(deep_ep|uccl|\b(intranode|internode|internode_ll))::.*(dispatch|combine)",
        _COMMUNICATION, Kind.ALL_TO_ALL, "DeepEP and its descendants, notify_dispatch and cached_notify_* included",
    ),
    Rule(r"deep_ep::", _COMMUNICATION, Kind.UNKNOWN, "DeepEP: buffer cleaning, queries"),
    Rule(r"hybrid_ep::.*(dispatch|combine)", _COMMUNICATION, Kind.ALL_TO_ALL, "DeepEP hybrid-EP"),
    Rule(r"hybrid_ep::.*(sync|barrier)", _COMMUNICATION, Kind.BARRIER, "DeepEP hybrid-EP"),
    Rule(r"(hybrid_ep|nccl_ep)_jit\w*(dispatch|combine)", _COMMUNICATION, Kind.ALL_TO_ALL, "NCCL EP"),
    Rule(
        r"moeA2A(Prepare)?(Dispatch|Combine)Kernel|\bmoeAllToAllKernel|moe_comm::\w*[aA]ll[tT]o[aA]ll",
        _COMMUNICATION, Kind.ALL_TO_ALL, "TensorRT-LLM, FlashInfer",
    ),
    Rule(r"\bEp(Dispatch|Combine)\w*Kernel", _COMMUNICATION, Kind.ALL_TO_ALL, "AMD MORI"),
    Rule(r"pplx\w*::.*([dD]ispatch|[cC]ombine)", _COMMUNICATION, Kind.ALL_TO_ALL, "Perplexity kernels"),
    Rule(r"^MoeDistribute(Dispatch|Combine)", _COMMUNICATION, Kind.ALL_TO_ALL, "CANN"),
    # -- compute and communication in one kernel ----------------------------------------------
    # The pattern's number is a template argument: 0 is a bare all-reduce, the others add residual and norm.
    Rule(r"allreduce_fusion_kernel\w*<[^<>]*Pattern\)0\b", _COMMUNICATION, Kind.ALL_REDUCE, "TensorRT-LLM, FlashInfer"),
    Rule(
        r"(allreduce|AllReduce|all_reduce)\w*(_fusion|Fusion|Norm|norm)",
        _FUSED, Kind.ALL_REDUCE, "all-reduce + norm: TensorRT-LLM, FlashInfer, vLLM, aiter",
    ),
    Rule(r"(fused_|[nN]orm\w*)(allreduce|AllReduce|all_reduce)", _FUSED, Kind.ALL_REDUCE, "norm + all-reduce"),
    Rule(r"(reducescatter|reduce_scatter|ReduceScatter)\w*[nN]orm", _FUSED, Kind.REDUCE_SCATTER, "with norm"),
    Rule(r"(userbuffers|ubuf)\w*(rmsnorm|layernorm)", _FUSED, Kind.ALL_REDUCE, "TensorRT-LLM, user buffers"),
    Rule(r"local_device_load_rmsnorm", _FUSED, Kind.ALL_REDUCE, "aiter"),
    Rule(r"(?i)all_?gather_?(batch)?(gemm|mat_?mul)", _FUSED, Kind.ALL_GATHER, "MC2, symmetric memory, Flux"),
    Rule(r"(?i)(gemm|mat_?mul(v\d)?)_?reduce_?scatter", _FUSED, Kind.REDUCE_SCATTER, "MC2, Flux, symmetric memory"),
    Rule(r"(?i)(gemm|mat_?mul(v\d)?)_?(add_?rms_?norm_?)?all_?reduce", _FUSED, Kind.ALL_REDUCE, "MC2"),
    Rule(r"(?i)(gemm|matmul)_?(one|two)_?shot", _FUSED, Kind.ALL_REDUCE, "Helion, Triton"),
    Rule(
        r"(?i)all_?to_?all\w*(gemm|mat_?mul)|(gemm|mat_?mul)\w*all_?to_?all",
        _FUSED, Kind.ALL_TO_ALL, "MC2, grouped GEMM + all-to-all",
    ),
    Rule(r"(?i)\b(ag_gemm|gemm_ag|ag_group_gemm)", _FUSED, Kind.ALL_GATHER, "Flux, Triton-distributed"),
    Rule(r"(?i)\b(gemm_rs|group_gemm_rs)", _FUSED, Kind.REDUCE_SCATTER, "Flux, Triton-distributed"),
    Rule(r"(?i)\bgemm_ar\b", _FUSED, Kind.ALL_REDUCE, "Flux, Triton-distributed"),
    Rule(r"DistributedGemm|dist_gemm|cublasmp\w*gemm", _FUSED, Kind.UNKNOWN, "CUTLASS, cuBLASMp"),
    # -- user buffers without computation -------------------------------------------------------
    Rule(r"userbuffers_\w*_(ag|allgather)", _COMMUNICATION, Kind.ALL_GATHER, "Transformer Engine"),
    Rule(r"userbuffers_\w*_(rs|reducescatter)", _COMMUNICATION, Kind.REDUCE_SCATTER, "Transformer Engine"),
    Rule(r"kuserbuffers_(push|pull)\w*", _COMMUNICATION, Kind.SEND_RECV, "Transformer Engine"),
    Rule(r"kuserbuffers_alltoall", _COMMUNICATION, Kind.ALL_TO_ALL, "Transformer Engine"),
    Rule(r"userbuffers_fp16_sum_inplace", _COMMUNICATION, Kind.ALL_REDUCE, "Transformer Engine"),
    Rule(r"\bk?userbuffers_", _COMMUNICATION, Kind.UNKNOWN, "Transformer Engine"),
    # -- symmetric memory and custom all-reduces -----------------------------------------------
    Rule(r"multimem_\w*(reduce|gather|scatter|broadcast)", _COMMUNICATION, _TOLD_BY_NAME, "PyTorch symmetric memory"),
    Rule(r"(one|two)_shot_all_reduce", _COMMUNICATION, Kind.ALL_REDUCE, "PyTorch symmetric memory and its copies"),
    Rule(
        r"(one|two)Shot\w*AllReduce|hybridCubeMeshAllReduce|lowPrecision\w*AllReduce|\bcustomAllReduce",
        _COMMUNICATION, Kind.ALL_REDUCE, "PyTorch IntraNodeComm, TensorRT-LLM",
    ),
    Rule(
        r"(one|two)shot_allreduce|allreduce_prototype_(one|two)shot",
        _COMMUNICATION, Kind.ALL_REDUCE, "multi-node NVLink kernels, quick all-reduce",
    ),
    Rule(r"symm(etric)?_mem\w*::.*barrier", _COMMUNICATION, Kind.BARRIER, "PyTorch symmetric memory"),
    Rule(r"symm(etric)?_mem\w*::.*(put|wait|get)_signal", _COMMUNICATION, Kind.SEND_RECV, "PyTorch symmetric memory"),
    Rule(r"cross_device_reduce_\d|reduce_scatter_cross_device", _COMMUNICATION, _TOLD_BY_NAME, "vLLM, SGLang, aiter"),
    Rule(r"aiter::allgather", _COMMUNICATION, Kind.ALL_GATHER, "aiter"),
    Rule(
        r"c10d::\w*(allToAllV|AllToAll|all_to_all)|\ballToAllV",
        _COMMUNICATION, Kind.ALL_TO_ALL, "PyTorch over NVSHMEM",
    ),
    Rule(r"(?i)(nv|roc)shmem", _COMMUNICATION, _TOLD_BY_NAME, "NVSHMEM, rocSHMEM"),
    Rule(
        r"\b(barrier|sync|quiet|alltoall|broadcast|fcollect|reduce|reducescatter|putmem|getmem|signal)\w*_on_stream_kernel",
        _COMMUNICATION, _TOLD_BY_NAME, "NVSHMEM collectives on a stream",
    ),
)  # fmt: skip

KIND_WORDS: tuple[tuple[str, Kind], ...] = (
    ("reducescatter", Kind.REDUCE_SCATTER),
    ("allreduce", Kind.ALL_REDUCE),
    ("crossdevicereduce", Kind.ALL_REDUCE),
    ("allgather", Kind.ALL_GATHER),
    ("gatherinto", Kind.ALL_GATHER),
    ("alltoall", Kind.ALL_TO_ALL),
    ("sendrecv", Kind.SEND_RECV),
    ("broadcast", Kind.BROADCAST),
    ("barrier", Kind.BARRIER),
    ("fcollect", Kind.ALL_GATHER),  # SHMEM's word
    ("gather", Kind.GATHER),
    ("scatter", Kind.SCATTER),
    ("reduce", Kind.REDUCE),
    ("receive", Kind.SEND_RECV),
    ("recv", Kind.SEND_RECV),
    ("send", Kind.SEND_RECV),
)
"""What a name says it does, in lower case without underscores; the first word that is in it counts."""
