import shutil
import sys

import pynvml
import pytest

from overlapwatch.hooks.nvml import ALL_LINKS, Counters, make_counters

UUID = "GPU-5f2a0b3c-0000-1111-2222-333344445555"


class FakeNvml:
    """As much of pynvml as `Counters` uses, for a machine of some GPUs. `missing` holds what this GPU does not have."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound

    def __init__(self, uuids=(UUID,), missing=(), broken=()):
        self.uuids, self.missing, self.broken = list(uuids), set(missing), set(broken)
        self.open = 0
        self.fields = {138: 10, 139: 20, 197: 3_000_000_000, 198: 4_000}
        self.rate_calls = 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def _check(self, name):
        if name in self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if name in self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    def nvmlDeviceGetFieldValues(self, handle, ids):
        values = []
        for number, scope in ids:
            assert scope == (ALL_LINKS if number in (138, 139) else 0)
            value = pynvml.c_nvmlFieldValue_t()
            value.fieldId = number
            if number in self.missing:
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = self.fields[number]
            values.append(value)
        return values

    def nvmlDeviceGetPcieThroughput(self, handle, direction):
        self.rate_calls += 1
        self._check("rate")
        return 111 + direction

    def nvmlDeviceGetClockInfo(self, handle, which):
        self._check(f"clock {which}")
        return {1: 1980, 2: 2619}[which]

    def nvmlDeviceGetPowerUsage(self, handle):
        self._check("power")
        return 412_345


@pytest.fixture
def fake(monkeypatch):
    def install(**facts):
        nvml = FakeNvml(**facts)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_a_gpu_with_everything(fake):
    nvml = fake()
    counters = make_counters(UUID)
    assert counters.active
    assert counters.sample() == {
        "nvlink_tx_bytes": 10 * 1024,
        "nvlink_rx_bytes": 20 * 1024,
        "pcie_tx_bytes": 3_000_000_000,
        "pcie_rx_bytes": 4_000,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "power_mw": 412_345,
    }
    assert counters.notes() == []
    assert nvml.rate_calls == 0, "the slow way is taken only where there is no other"
    counters.close()
    assert nvml.open == 0
    assert counters.sample() == {}


def test_what_a_gpu_does_not_have_is_absent_and_said_once(fake):
    fake(missing={138, 139, "power"})
    counters = make_counters(UUID)
    sample = counters.sample()
    assert set(sample) == {"pcie_tx_bytes", "pcie_rx_bytes", "sm_clock_mhz", "memory_clock_mhz"}
    assert counters.notes() == [
        f"{UUID} has no nvlink_tx_bytes, nvlink_rx_bytes, power_mw (Not Supported)"
    ]
    assert counters.notes() == []


def test_without_pcie_counters_the_rate_is_sampled_and_without_that_it_is_absent(fake):
    fake(missing={197, 198})
    sample = make_counters(UUID).sample()
    assert (sample["pcie_tx_kb_per_s"], sample["pcie_rx_kb_per_s"]) == (111, 112)
    assert "pcie_tx_bytes" not in sample
    fake(missing={197, 198, "rate"})
    counters = make_counters(UUID)
    assert not [name for name in counters.sample() if name.startswith("pcie")]
    assert counters.notes() == [f"{UUID} has no pcie_tx_bytes, pcie_rx_bytes (Not Supported)"]


def test_a_reading_that_fails_is_left_out_this_time_only(fake):
    nvml = fake()
    counters = make_counters(UUID)
    nvml.broken.add("power")
    assert "power_mw" not in counters.sample()
    assert counters.failures == 1
    nvml.broken.clear()
    assert counters.sample()["power_mw"] == 412_345
    assert counters.notes() == []


def test_a_counter_that_goes_away_is_said_once(fake):
    nvml = fake()
    counters = make_counters(UUID)
    nvml.missing.add("clock 1")
    assert "sm_clock_mhz" not in counters.sample()
    assert counters.notes() == [f"{UUID} has no sm_clock_mhz (Not Supported)"]
    counters.sample()
    assert counters.notes() == []


def test_the_gpu_is_found_by_uuid_with_or_without_its_prefix(fake):
    other = "GPU-00000000-9999-8888-7777-666655554444"
    nvml = fake(uuids=[other, UUID])
    assert make_counters(UUID.removeprefix("GPU-")).active
    assert make_counters(other).active
    assert nvml.open == 2
    unknown = make_counters("GPU-nowhere")
    assert unknown.because == "NVML does not know the GPU GPU-nowhere (Not Found)"
    assert nvml.open == 2


def test_without_a_uuid_only_a_single_gpu_is_taken(fake):
    fake()
    assert make_counters().active
    nvml = fake(uuids=[UUID, "GPU-2"])
    counters = make_counters()
    assert not counters.active
    assert counters.because.startswith("the machine has 2 GPUs and it is not known which")
    assert nvml.open == 0


def test_a_driver_that_does_not_start(fake, monkeypatch):
    nvml = fake()

    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert make_counters().because == "NVML does not start (Driver Not Loaded)"


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert make_counters().because == "the nvidia-ml-py package is not installed"


def test_the_fields_are_those_of_the_real_package():
    assert (
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
    ) == (138, 139, 197, 198)
    assert (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES) == (0, 1)
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (1, 2)
    for name in [name for name in vars(FakeNvml) if name.startswith("nvml")]:
        assert callable(getattr(pynvml, name))


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_the_real_package_on_a_machine_without_a_gpu():
    counters = make_counters()
    assert type(counters) is not Counters
    assert counters.sample() == {}
    assert counters.notes() == ["no GPU counters: no NVIDIA driver on this machine"]
    assert counters.notes() == []
    counters.close()
