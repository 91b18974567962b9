"""Counters of the GPU from NVML: bytes over NVLink and PCIe, clocks, power.

In: which GPU. Out: `sample()`, a dict from a name with its unit to an integer. A counter that this GPU does not have is
absent, never zero, and said once; a machine without a driver gives `NullCounters` with one sentence. Cumulative
counters (`*_bytes`) are as NVML gives them, since the driver was loaded, and may wrap: take differences.

It is the drain thread's business. A sample takes about a millisecond, except where the GPU has no PCIe byte counters:
there NVML watches the bus for about 20 ms in each direction and gives a rate (`*_kb_per_s`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ALL_LINKS = 0xFFFF_FFFF
"""The scope that makes NVML add up all NVLinks of the GPU; without it, it answers for link 0."""

_FIELD_NVLINK_TX, _FIELD_NVLINK_RX = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*, KiB
_FIELD_PCIE_TX, _FIELD_PCIE_RX = 197, 198  # NVML_FI_DEV_PCIE_COUNT_*_BYTES
_VALUE_OF_TYPE = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


@dataclass(frozen=True, slots=True)
class _Counter:
    name: str
    read: Callable[[], int]
    instead: "_Counter | None" = None  # tried when this one is not supported


class NullCounters:
    """Counts nothing.

    Attributes:
        active: whether there is anything to sample.
        because: why not.
    """

    active = False

    def __init__(self, because: str) -> None:
        self.because = because

    def sample(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def notes(self) -> list[str]:
        """Return sentences that were not said before."""
        said, self.because = self.because, ""
        return [f"no GPU counters: {said}"] if said else []

    def close(self) -> None:
        """Let go of NVML."""


class Counters(NullCounters):
    """Counters of one GPU. Made by `make_counters`."""

    active = True

    def __init__(self, nvml: Any, handle: Any, gpu: str) -> None:
        super().__init__("")
        self._nvml = nvml
        self._gpu = gpu
        self._failures = 0
        self._absent: dict[str, str] = {}  # not said yet
        self._counters = self._find(handle)

    @property
    def failures(self) -> int:
        """How many readings failed although the GPU has the counter."""
        return self._failures

    def sample(self) -> dict[str, int]:
        """Read every counter this GPU has; one that fails now is left out of this sample and counted."""
        readings = {counter.name: self._read(counter) for counter in tuple(self._counters)}
        return {name: value for name, value in readings.items() if value is not None}

    def _read(self, counter: _Counter) -> int | None:
        try:
            return counter.read()
        except self._nvml.NVMLError_NotSupported as error:
            self._counters.remove(counter)
            self._absent[counter.name] = str(error)
        except self._nvml.NVMLError:
            self._failures += 1
        return None

    def notes(self) -> list[str]:
        """Return sentences that were not said before: which counters this GPU does not have."""
        absent, self._absent = self._absent, {}
        if not absent:
            return []
        reasons = sorted(set(absent.values()))
        return [f"{self._gpu} has no {', '.join(absent)} ({'; '.join(reasons)})"]

    def close(self) -> None:
        """Let go of NVML."""
        self._counters = []
        self._nvml.nvmlShutdown()

    def _find(self, handle: Any) -> list[_Counter]:
        """Try every counter once and keep those that answer."""
        tried = [self._first_that_answers(candidate) for candidate in self._candidates(handle)]
        return [counter for counter in tried if counter is not None]

    def _first_that_answers(self, counter: _Counter) -> _Counter | None:
        try:
            counter.read()
        except self._nvml.NVMLError as error:
            if counter.instead is not None and (found := self._first_that_answers(counter.instead)):
                return found
            self._absent.pop(counter.instead.name if counter.instead else "", None)
            self._absent[counter.name] = str(error)
            return None
        return counter

    def _candidates(self, handle: Any) -> list[_Counter]:
        nvml = self._nvml

        def field(number: int, scale: int, scope: int = 0) -> Callable[[], int]:
            def read() -> int:
                (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
                if value.nvmlReturn:
                    raise nvml.NVMLError(value.nvmlReturn)
                return int(getattr(value.value, _VALUE_OF_TYPE[value.valueType])) * scale

            return read

        def call(function: str, *arguments: Any) -> Callable[[], int]:
            return lambda: int(getattr(nvml, function)(handle, *arguments))

        tx_rate = _Counter("pcie_tx_kb_per_s", call("nvmlDeviceGetPcieThroughput", 0))
        rx_rate = _Counter("pcie_rx_kb_per_s", call("nvmlDeviceGetPcieThroughput", 1))
        return [
            _Counter("nvlink_tx_bytes", field(_FIELD_NVLINK_TX, 1024, ALL_LINKS)),
            _Counter("nvlink_rx_bytes", field(_FIELD_NVLINK_RX, 1024, ALL_LINKS)),
            _Counter("pcie_tx_bytes", field(_FIELD_PCIE_TX, 1), tx_rate),
            _Counter("pcie_rx_bytes", field(_FIELD_PCIE_RX, 1), rx_rate),
            _Counter("sm_clock_mhz", call("nvmlDeviceGetClockInfo", 1)),
            _Counter("memory_clock_mhz", call("nvmlDeviceGetClockInfo", 2)),
            _Counter("power_mw", call("nvmlDeviceGetPowerUsage")),
        ]


def make_counters(uuid: str | None = None) -> NullCounters:
    """Return the counters of a GPU, or `NullCounters` that say why there are none. Never raises.

    Args:
        uuid: which GPU, with or without the "GPU-" prefix: `torch.cuda.get_device_properties(device).uuid`. NVML knows
            nothing of CUDA_VISIBLE_DEVICES, so an index would name another GPU. Without one, the machine's only GPU.
    """
    try:
        import pynvml  # noqa: PLC0415 - a missing package must not matter
    except ImportError:
        return NullCounters("the nvidia-ml-py package is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return NullCounters("no NVIDIA driver on this machine")
    except pynvml.NVMLError as error:
        return NullCounters(f"NVML does not start ({error})")
    try:
        handle, gpu = _handle(pynvml, uuid)
        if handle is not None:
            return Counters(pynvml, handle, gpu)
        because = gpu
    except pynvml.NVMLError as error:
        because = f"NVML does not know the GPU {uuid or 0} ({error})"
    pynvml.nvmlShutdown()
    return NullCounters(because)


def _handle(nvml: Any, uuid: str | None) -> tuple[Any, str]:
    """Return a handle and the GPU's name for people, or None and why not."""
    if uuid is not None:
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return nvml.nvmlDeviceGetHandleByUUID(full), full
    count = nvml.nvmlDeviceGetCount()
    if count == 1:
        return nvml.nvmlDeviceGetHandleByIndex(0), "the GPU"
    return None, f"the machine has {count} GPUs and it is not known which one this process uses"
