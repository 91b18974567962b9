"""Names as profilers write them, with the class and kind that a reader of the report expects."""

import re

import pytest

from overlapwatch.errors import ConfigurationError
from overlapwatch.rules import RULES, KernelClass
from overlapwatch.timeline.classify import (
    USER_RULE,
    classify,
    compile_patterns,
    kind_of,
    none_recognised,
)
from overlapwatch.vocabulary import CollectiveKind as Kind

FUSION = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern){}, __nv_bfloat16, 8, false, false>(flashinfer::P<__nv_bfloat16>)"

COMMUNICATION = {
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": Kind.ALL_REDUCE,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": Kind.ALL_REDUCE,
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": Kind.BROADCAST,
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": Kind.SEND_RECV,
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.ALL_GATHER,
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.REDUCE_SCATTER,
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Kind.REDUCE,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": Kind.SEND_RECV,
    "ncclSymDevKernel_ReduceScatter_LL_sum_f32(ncclSymDevArgs)": Kind.REDUCE_SCATTER,
    "ncclSymkDevKernel_AllGather_LSA_ST(ncclSymkDevWorkArgs4K)": Kind.ALL_GATHER,
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": Kind.UNKNOWN,
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": Kind.UNKNOWN,
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": Kind.UNKNOWN,
    "hcom_allReduce__445_2": Kind.ALL_REDUCE,
    "hcom_alltoallv_": Kind.ALL_TO_ALL,
    "hcom_receive__012_7": Kind.SEND_RECV,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": Kind.ALL_TO_ALL,
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": Kind.ALL_TO_ALL,
    "void deep_ep::internode_ll::combine<true, 9, 9, 7168>(void*)": Kind.ALL_TO_ALL,
    "void deep_ep::intranode::barrier<8>(int**, int)": Kind.BARRIER,
    "void hybrid_ep::dispatch_kernel<hybrid_ep::G2S<4>, 8>(hybrid_ep::dispatch_kernel_param_t<unsigned short>)": Kind.ALL_TO_ALL,
    "hybrid_ep::device_sync_kernel(unsigned int*, unsigned int*)": Kind.BARRIER,
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int const*)": Kind.ALL_TO_ALL,
    "void mori::moe::EpDispatchIntraNodeKernel<float>(mori::moe::EpDispatchCombineArgs<float>)": Kind.ALL_TO_ALL,
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": Kind.ALL_REDUCE,
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)": Kind.ALL_REDUCE,
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)": Kind.ALL_REDUCE,
    "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)": Kind.SEND_RECV,
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int)": Kind.ALL_GATHER,
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>(int, int)": Kind.REDUCE_SCATTER,
    "nvshmemi_barrier_kernel(int)": Kind.BARRIER,
    "void alltoall_on_stream_kernel<long>(int)": Kind.ALL_TO_ALL,
    FUSION.format(0): Kind.ALL_REDUCE,
}

FUSED = {
    FUSION.format(1): Kind.ALL_REDUCE,
    "MatmulAllReduce": Kind.ALL_REDUCE,
    "MatmulAllReduceAddRmsNorm": Kind.ALL_REDUCE,
    "AllGatherMatmul": Kind.ALL_GATHER,
    "MatmulReduceScatter": Kind.REDUCE_SCATTER,
    "AlltoAllAllGatherBatchMatMul": Kind.ALL_GATHER,
    "gemm_one_shot_all_reduce_kernel": Kind.ALL_REDUCE,
    "void userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm_quant<__half, 4>(int)": Kind.ALL_REDUCE,
    "void mine::gemm_then_push<128>(float*, ncclDevComm, ncclWindow_t)": Kind.UNKNOWN,
}

COMPUTE = (
    "ampere_sgemm_128x64_nn",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>(Params)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, x>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_1",
    "triton_red_fused__to_copy_all_reduce_native_layer_norm_0",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
    "void moe::fused_moe_dispatch_tokens(int)",
    "",
)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication(name):
    told = classify([name])
    assert (KernelClass(told.kernel[0]), Kind(told.kind[0])) == (
        KernelClass.COMMUNICATION,
        COMMUNICATION[name],
    )
    assert told.because[0]


@pytest.mark.parametrize("name", FUSED)
def test_computes_and_communicates_at_once(name):
    told = classify([name])
    assert (KernelClass(told.kernel[0]), Kind(told.kind[0])) == (KernelClass.FUSED, FUSED[name])


@pytest.mark.parametrize("name", COMPUTE)
def test_what_no_rule_knows_is_compute(name):
    told = classify([name])
    assert KernelClass(told.kernel[0]) is KernelClass.COMPUTE
    assert Kind(told.kind[0]) is Kind.UNKNOWN


def test_a_users_pattern_comes_first_and_the_name_tells_the_kind():
    names = ["acme_ring_all_gather<8>(x)", "acme_push", "ampere_sgemm_128x64_nn"]
    told = classify(names, compile_patterns(["^acme_"]))
    assert told.kernel.tolist() == [1, 1, 0]
    assert told.kind.tolist() == [Kind.ALL_GATHER, Kind.UNKNOWN, Kind.UNKNOWN]
    assert told.because == (USER_RULE, USER_RULE, "")


def test_a_pattern_that_is_none_is_one_sentence():
    with pytest.raises(ConfigurationError, match=r"'\(' is not a regular expression") as error:
        compile_patterns(["("])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("_allgather_base", Kind.ALL_GATHER),
        ("_reduce_scatter_base", Kind.REDUCE_SCATTER),
        ("allreduce_coalesced", Kind.ALL_REDUCE),
        ("all_to_allv", Kind.ALL_TO_ALL),
        ("nccl:recv 1<-0", Kind.SEND_RECV),
        ("scatter", Kind.SCATTER),
        ("wait", Kind.UNKNOWN),
        ("init", Kind.UNKNOWN),
    ],
)
def test_words_of_operations(text, kind):
    assert kind_of(text) is kind


def test_every_rule_says_whose_kernels_it_knows_and_compiles():
    assert all(rule.source for rule in RULES)
    assert [rule.pattern for rule in RULES if re.compile(rule.pattern).search("")] == []


def test_none_recognised_is_never_a_number_of_communication():
    told = none_recognised(["a", "b"])
    assert told.what == "communication"
    assert "none of 2 kernel names" in told.because
    assert "0 ms" not in told.because
