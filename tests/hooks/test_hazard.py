import pytest

from overlapwatch.hooks.hazard import EventPolicy, event_policy
from overlapwatch.settings import EVENT_POLICIES

HOST, PAIRS, PHASES = EventPolicy.HOST_ONLY, EventPolicy.EVENT_PAIRS, EventPolicy.PHASE_EVENTS_ONLY
ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

# fmt: off
TABLE = [
    # device, environ, arch, tensor parallel, wanted -> policy, observer stream, in the sentence, in the warnings
    ("cpu", {}, None, None, "auto", HOST, False, "CPU", []),
    ("cpu", ONE, None, None, "pairs", HOST, False, "events=pairs has no effect", []),
    ("cpu", {"TORCH_NCCL_ENABLE_TIMING": "1"}, None, None, "host", HOST, False, "CPU", []),
    ("cuda", {}, 9, 1, "auto", PAIRS, True, "not set", []),
    ("cuda", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, 9, 8, "auto", PAIRS, True, "=32", []),
    ("cuda", ONE, None, None, "auto", PHASES, False, "remove all overlap", []),
    ("cuda", ONE, 9, 8, "auto", PHASES, False, "Megatron needs this setting", []),
    ("cuda", ONE, 9, 1, "auto", PHASES, False, "can be removed", []),
    ("cuda", ONE, 10, 8, "auto", PHASES, False, "does not need this setting on this GPU", []),
    ("cuda", {"CUDA_DEVICE_MAX_CONNECTIONS": " 1 "}, None, None, "auto", PHASES, False, "remove", []),
    ("cuda", {"CUDA_DEVICE_MAX_CONNECTIONS": "many"}, 9, 1, "auto", PAIRS, True, "not set", ["=many is not a number"]),
    ("cuda", {"CUDA_DEVICE_MAX_CONNECTIONS": "0"}, 9, 1, "auto", PAIRS, True, "not set", ["=0 is not a number from 1"]),
    ("cuda", ONE, 9, 8, "pairs", PAIRS, True, "asked for", ["although CUDA_DEVICE_MAX_CONNECTIONS=1"]),
    ("cuda", ONE, 9, 8, "phases", PHASES, False, "asked for", []),
    ("cuda", {}, 9, 8, "host", HOST, False, "asked for", []),
    ("cuda", {}, 9, 8, "phases", PHASES, False, "asked for", []),
    ("cuda", {"TORCH_NCCL_BLOCKING_WAIT": "1"}, 9, 1, "auto", PAIRS, False, "TORCH_NCCL_BLOCKING_WAIT is on", []),
    ("cuda", {"NCCL_BLOCKING_WAIT": "True"}, 9, 1, "pairs", PAIRS, False, "NCCL_BLOCKING_WAIT is on", []),
    ("cuda", {"TORCH_NCCL_BLOCKING_WAIT": "0", "NCCL_BLOCKING_WAIT": "1"}, 9, 1, "auto", PAIRS, True, "not set", []),
    ("cuda", {"TORCH_NCCL_ENABLE_TIMING": "yes"}, 9, 1, "auto", PAIRS, True, "not set", ["which removes the overlap where"]),
    ("cuda", {**ONE, "NCCL_ENABLE_TIMING": "1"}, 9, 1, "auto", PHASES, False, "remove all", ["and removes the overlap"]),
    ("cuda", {"CUDA_LAUNCH_BLOCKING": "1"}, 9, 1, "auto", PAIRS, True, "not set", ["nothing can overlap"]),
    ("xpu", ONE, None, None, "auto", PHASES, False, "on xpu has not been checked", []),
    ("npu", {}, None, None, "pairs", PAIRS, True, "asked for", ["although whether timed events"]),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}-{row[4]}")
def test_the_policy(row):
    device, environ, arch, parallel, wanted, policy, observer, sentence, warnings = row
    plan = event_policy(device, environ, arch, parallel, wanted)
    assert (plan.policy, plan.observer_stream) == (policy, observer)
    assert sentence in plan.because
    assert "\n" not in plan.because
    assert len(plan.warnings) == len(warnings)
    for part, warning in zip(warnings, plan.warnings, strict=True):
        assert part in warning


def test_the_setting_offers_exactly_these_policies():
    assert set(EVENT_POLICIES) == {"auto", *(policy.value for policy in EventPolicy)}
