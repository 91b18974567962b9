"""Clocks: the host's, and device events placed on it.

In: a host clock and a `Device` (torch, or a simulated one). Out: integer ns on this rank's host clock, with a bound on
how wrong a device time can be. Does not know what is being timed.
"""

from overlapwatch.clock.device import Device, TorchDevice
from overlapwatch.clock.events import DeviceClockReport, DeviceEventClock
from overlapwatch.clock.host import HostClock
from overlapwatch.clock.offset import DRIFT_PPM, OffsetEstimate

__all__ = [
    "DRIFT_PPM",
    "Device",
    "DeviceClockReport",
    "DeviceEventClock",
    "HostClock",
    "OffsetEstimate",
    "TorchDevice",
]
