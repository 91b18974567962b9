"""FSDP2 in one process on a simulated device: two ranks of which one is pretended, and streams in simulated time.

In: a model built inside `simulated(...)`. Out: FSDP2's own code, which puts its collectives and copies on the simulated
device's streams, each taking the time that was asked for. Collectives of the pretended rank do nothing; results are
meaningless, times are exact.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_param,
    _fsdp_param_group,
    _fsdp_state,
)

from tests.support.device import Event, SimulatedDevice, Stream

MS = 1_000_000


class Handle:
    """What FSDP2 asks of `torch.cuda`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        handle = self

        class DeviceStream(Stream):
            def __init__(self, priority: int = 0) -> None:
                super().__init__(100 + len(handle.streams))
                handle.streams.append(self)

            def __eq__(self, other: object) -> bool:
                return self is other

            def __hash__(self) -> int:
                return self.stream_id

            def wait_stream(self, other: Stream) -> None:
                self.free_at = max(self.free_at, other.free_at)

            def wait_event(self, event: Event) -> None:
                device.wait(self, event)

            def record_event(self, event: Event | None = None) -> Event:
                event = event or Event()
                event.complete_at = self.free_at
                return event

        class DeviceEvent(Event):
            def record(self, stream: Any = None) -> None:
                self.complete_at = (stream or device.current_stream()).free_at

        self.streams: list[Any] = []
        self.Stream, self.Event = DeviceStream, DeviceEvent
        device.default = device._current = DeviceStream()

    def stream(self, stream: Any) -> Any:
        return self._device.on(stream)

    def current_stream(self) -> Any:
        return self._device.current_stream()


class Compute(torch.autograd.Function):
    """Takes the device's time, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, device: SimulatedDevice, forward_ms: float, backward_ms: float
    ) -> Tensor:
        ctx.work = lambda: device.work(int(backward_ms * MS))
        device.work(int(forward_ms * MS))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.work()
        return gradients[0], None, None, None


class Block(nn.Module):
    """A layer that computes for a while."""

    def __init__(
        self, device: SimulatedDevice, forward_ms: float = 1, backward_ms: float = 2
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self._takes = (device, forward_ms, backward_ms)

    def forward(self, x: Tensor) -> Tensor:
        # The time passes before the layer, so that it is over in the backward when the gradients reach the input.
        return self.layer(Compute.apply(x, *self._takes))


@contextmanager
def simulated(device: SimulatedDevice, took_ms: dict[str, float]) -> Iterator[Handle]:
    """Make FSDP2 run on the device.

    Args:
        device: the device.
        took_ms: ms on the current stream, by op: "c10d::_allgather_base_", "fsdp::chunk_cat", ...
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    handle = Handle(device)
    libraries = {name: torch.library.Library(name, "IMPL") for name in ("c10d", "fsdp")}
    below = torch._C._after_ADInplaceOrView_keyset
    for name, ms in took_ms.items():
        space, op = name.split("::")
        redispatch = getattr(getattr(torch.ops, space), op).default.redispatch

        def kernel(
            keyset: Any, *args: Any, _go: Any = redispatch, _ms: float = ms, **kwargs: Any
        ) -> Any:
            device.work(int(_ms * MS))
            return _go(keyset & below, *args, **kwargs)

        libraries[space].impl(op, kernel, "ADInplaceOrView", with_keyset=True)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    modules = (_fsdp_collectives, _fsdp_param, _fsdp_param_group, _fsdp_state)
    patches = [
        mock.patch.object(module, "_get_device_handle", return_value=handle)
        for module in modules
        if hasattr(module, "_get_device_handle")
    ]
    for patch in patches:
        patch.start()
    try:
        yield handle
    finally:
        for patch in patches:
            patch.stop()
        dist.destroy_process_group()
        for library in libraries.values():
            library._destroy()
