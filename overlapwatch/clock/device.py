"""What the event clock needs of a device, and the real thing on torch's generic device API (2.6 and newer).

In: a torch device. Out: events, streams as small numbers, elapsed times in float32 ms (that is what devices give).
torch is imported when a `TorchDevice` is made, not before. A simulated device with the same methods is in the tests.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from overlapwatch.errors import ConfigurationError

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Device(Protocol):
    """Eight calls. None of them may wait for the device."""

    def make_event(self) -> Any:
        """Return a new event that can be timed."""

    def record(self, event: Any, stream: Any) -> None:
        """Queue the event on a stream. Recording it again makes it forget the earlier time."""

    def querying(self) -> AbstractContextManager[None]:
        """Inside this context events may be queried while another thread captures a graph."""

    def query(self, event: Any) -> bool:
        """Say whether a recorded event is complete, without waiting."""

    def elapsed_ms(self, first: Any, second: Any) -> float:
        """Return ms from one complete event to another, rounded to float32; negative when they are reversed."""

    def current_stream(self) -> Any:
        """Return the calling thread's current stream on this device."""

    def stream_number(self, stream: Any) -> int:
        """Return a small number for a stream, from 1 in order of first use (0 is the host)."""

    def is_capturing(self) -> bool:
        """Say whether the current stream is being captured into a graph."""


class TorchDevice:
    """A `Device` on an accelerator that torch knows.

    Querying an event while another thread captures a graph invalidates that capture, unless the querying thread has a
    capture mode of its own (pytorch#104555, #148594): `querying` sets it, and puts it back. On ROCm that is not enough
    (pytorch#177309), so there are no events there.

    Raises:
        ConfigurationError: the device has no events that could be used.
    """

    def __init__(self, device: Any) -> None:
        import torch  # noqa: PLC0415 - the package starts without torch

        chosen = torch.device(device)
        if chosen.type in ("cpu", "meta"):
            raise ConfigurationError(
                f"device {chosen} has no timed events; use the host clock there"
            )
        if chosen.type == "cuda" and torch.version.hip:
            raise ConfigurationError(
                "on ROCm, asking for an event can break a graph capture (pytorch#177309)"
            )
        module = torch.get_device_module(chosen)
        index = chosen.index if chosen.index is not None else module.current_device()
        self.device = torch.device(chosen.type, index)
        self._torch = torch
        self._module = module
        self._exchange = _capture_mode_exchange() if chosen.type == "cuda" else None
        # Only some backends know graphs; where there are none, nothing is ever captured.
        self.is_capturing = getattr(module, "is_current_stream_capturing", _never)
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    def make_event(self) -> Any:
        """Return a new timed event. torch makes the device's own event when it is first recorded."""
        return self._torch.Event(self.device, enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """Queue the event on a stream."""
        event.record(stream)

    @contextmanager
    def querying(self) -> Iterator[None]:
        """Query inside this: with our device current, and without disturbing another thread's graph capture."""
        with self._module.device(self.device):
            if self._exchange is None:
                yield
                return
            mode = ctypes.c_int(_THREAD_LOCAL)
            _checked(self._exchange(ctypes.byref(mode)))  # `mode` now holds the one before
            try:
                yield
            finally:
                _checked(self._exchange(ctypes.byref(mode)))

    def query(self, event: Any) -> bool:
        """Say whether a recorded event is complete, without waiting."""
        return bool(event.query())

    def elapsed_ms(self, first: Any, second: Any) -> float:
        """Return ms from one complete event to another (a float32)."""
        return float(first.elapsed_time(second))

    def current_stream(self) -> Any:
        """Return the calling thread's current stream on this device."""
        return self._torch.accelerator.current_stream(self.device)

    def stream_number(self, stream: Any) -> int:
        """Return a small number for a stream: torch's own ids are large and sparse."""
        key = stream.stream_id
        number = self._numbers.get(key)
        if number is None:
            with self._lock:  # hooks fire on several threads
                number = self._numbers.setdefault(key, len(self._numbers) + 1)
        return number


def _never() -> bool:
    return False


def _capture_mode_exchange() -> Any:
    """Return the driver's call that swaps the calling thread's capture mode; torch does not offer it."""
    return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode


def _checked(result: int) -> None:
    if result:
        raise RuntimeError(f"the CUDA driver refused to change the capture mode (error {result})")
