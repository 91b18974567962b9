"""Chooses the clock for the model's device, and says which device that is.

In: the device of the model's parameters, the settings, the environment. Out: the `Times` that every hook uses, and the
plan that decided it. Real devices have not been run by this project's own tests: docs/gpu.md says what that means.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from overlapwatch.clock import DeviceEventClock, HostClock, TorchDevice
from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.hazard import EventPlan, EventPolicy, event_policy
from overlapwatch.hooks.recorder import log
from overlapwatch.hooks.times import DeviceTimes, HostTimes
from overlapwatch.ring import Ring
from overlapwatch.settings import Settings


@dataclass(frozen=True, slots=True)
class Chosen:
    """The clock and why it was chosen."""

    times: HostTimes | DeviceTimes
    plan: EventPlan
    device: str


def choose_times(
    device: torch.device,
    settings: Settings,
    ring: Ring,
    environ: Mapping[str, str] = os.environ,
    split: int | None = None,
) -> Chosen:
    """Return the times for a device.

    Args:
        device: where the model's parameters are.
        settings: `events` overrides the policy.
        ring: where times are stored.
        environ: decides whether timed events are safe (see hooks/hazard.py).
        split: over how many ranks a layer or a sequence is split; None when not known.
    """
    host = HostClock()
    major = None
    if device.type == "cuda" and torch.cuda.is_available():
        major = torch.cuda.get_device_capability(device)[0]
    plan = event_policy(device.type, environ, major, split, settings.events)
    for warning in plan.warnings:
        log.warning("%s", warning)
    if plan.policy is EventPolicy.HOST_ONLY:
        return Chosen(HostTimes(host.now, ring), plan, _label(device))
    try:
        clock = DeviceEventClock(TorchDevice(device), host)
    except ConfigurationError as error:
        log.warning("%s: times are those of the host, which runs ahead of the device", error)
        plan = EventPlan(EventPolicy.HOST_ONLY, observer_stream=False, because=str(error))
        return Chosen(HostTimes(host.now, ring), plan, _label(device))
    if not clock.calibrate():
        log.debug("the device was busy: its clock is placed on the host's as training goes on")
    module = torch.get_device_module(device)
    observer = module.Stream(device=device) if plan.observer_stream else None
    times = DeviceTimes(host.now, ring, clock, plan, module.stream, observer)
    return Chosen(times, plan, _label(device))


def _label(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    index = device.index if device.index is not None else 0
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return f"{device.type}:{index} {name}".strip()
