"""Columns of one trace -> Recordings: one timeline for each device, or one for the host.

In: a `Trace`. Out: Recordings. A trace without any device event is one of the host: its operators
are the compute lane. Collectives that run on the host (gloo) are communication beside the kernels
of the device, when there is one device; with several nobody can say whose they are.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from overlapwatch.rules import KernelClass
from overlapwatch.sources.kineto import host as on_host
from overlapwatch.sources.kineto.columns import Arrays, Columns, What
from overlapwatch.sources.kineto.copy_engine import copy_collectives
from overlapwatch.sources.kineto.damage import implausible
from overlapwatch.sources.kineto.lanes import (
    Launches,
    calls_made,
    class_of,
    communication_of,
    lane,
    launches_of,
    payloads_of,
)
from overlapwatch.sources.kineto.sites import call_sites, phases_of
from overlapwatch.sources.kineto.steps import device_steps, host_steps, step_of
from overlapwatch.timeline.classify import Classes, classify, none_recognised
from overlapwatch.timeline.model import Origin, Recording, Skipped, Timeline, Unknown
from overlapwatch.vocabulary import Name, NameKind

COMPUTE_RULE = "kernels that are not known to communicate"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One trace file.

    Args:
        origin: without a device.
        columns: its events.
        base_ns: what their times count from.
        groups: process groups.
        device_names: by device number.
        about, notes, unknown: as in a Recording.
    """

    origin: Origin
    columns: Columns
    base_ns: int
    groups: Mapping[int, Name]
    device_names: Mapping[int, str]
    about: Mapping[str, str]
    notes: tuple[str, ...]
    unknown: tuple[Unknown, ...]


def recordings_of(
    trace: Trace, patterns: Sequence[re.Pattern[str]], devices: Collection[int] | None
) -> list[Recording]:
    """Return the Recordings of a trace, by device number."""
    columns = trace.columns
    arrays = columns.arrays(trace.base_ns)
    device = arrays.device
    maker = _Maker(trace, arrays, columns.names.texts(), patterns)
    work = device[np.isin(device["what"], (What.KERNEL, What.COPY))]
    numbers = np.unique(work["device"]).tolist()
    if not numbers:
        return [maker.of_host()]
    chosen = [number for number in numbers if devices is None or number in devices]
    return [
        maker.of_device(number, work[work["device"] == number], alone=len(numbers) == 1)
        for number in chosen
    ]


class _Maker:
    """Makes the Recordings of one trace; holds what its devices share."""

    def __init__(
        self,
        trace: Trace,
        arrays: Arrays,
        names: list[str],
        patterns: Sequence[re.Pattern[str]],
    ) -> None:
        host, device = arrays.host, arrays.device
        self._trace = trace
        self._host = host
        self._host_end = arrays.host_end
        self._runtime = arrays.runtime
        self._names = names
        self._patterns = patterns
        self._calls = trace.columns.calls.all
        called = host[host["call"] >= 0]
        self._on_host = on_host.collectives(called, names)
        self._made = calls_made(
            called[~np.isin(called["name"], np.unique(self._on_host["name"]))], self._calls
        )
        self._ranges = host[host["what"] == What.RANGE]
        # Annotations of the device repeat those of the host; they serve where the host has none.
        self._shown = self._ranges
        if not len(self._ranges):
            self._shown = device[device["what"] == What.DEVICE_RANGE]
        self._steps = host_steps(self._ranges, dict(enumerate(names, 1)))
        self._skipped = [
            Skipped(what, count, why) for (what, why), count in trace.columns.skipped.items()
        ]

    def of_host(self) -> Recording:
        """Return the Recording of a trace without device events."""
        theirs = self._on_host
        records = on_host.records_of(theirs, self._calls)
        records["step"] = _numbers_of(self._steps, step_of(self._steps, records["launch"]))
        compute = on_host.compute_lane(self._host, self._names)
        unknown = [*self._trace.unknown]
        if not len(compute) and not len(records):
            because = "the trace holds no event of a device and no operator of the host"
            unknown.append(Unknown("compute and communication", because))
        elif not len(records):
            called = f"{len(self._made)} were called on a device that was not recorded"
            because = (
                called if len(self._made) else "none of the host (gloo, MPI, UCC) was recorded"
            )
            unknown.append(Unknown("communication", f"no collective is known: {because}"))
        timeline = Timeline(
            origin=replace(self._trace.origin, device="cpu"),
            compute=compute,
            communication=records,
            ranges=lane(self._shown),
            payloads=_joined(
                on_host.payloads_of(theirs, self._calls, 0),
                payloads_of(self._made, self._calls, np.full(len(self._made), -1)),
            ),
            compute_rule=on_host.COMPUTE_RULE,
            steps=self._steps,
            names=self._named(self._shown["name"]),
            groups=dict(self._trace.groups),
            skipped=tuple(self._skipped),
            unknown=tuple(unknown),
        )
        counters = {"operators": int((self._host["what"] == What.OPERATOR).sum())}
        return self._recording(timeline, counters)

    def of_device(self, number: int, rows: NDArray[np.void], *, alone: bool) -> Recording:
        """Return the Recording of one device.

        Args:
            number: of the device.
            rows: DEVICE rows of its kernels and copies.
            alone: whether it is the only device of the trace.
        """
        skipped = [*self._skipped]
        damaged = implausible(rows, self._host_end)
        keep = np.ones(len(rows), np.bool_)
        for reason, bad in damaged.items():
            skipped.append(Skipped("device events", int(bad.sum()), reason))
            keep &= ~bad
        rows = rows[keep]
        used = np.unique(rows["name"][rows["what"] == What.KERNEL])
        classes = self._classes(used)
        launches = launches_of(rows, self._runtime)
        launched_in = step_of(self._steps, launches.moment)
        steps = device_steps(self._steps, launched_in, rows["start"], rows["end"])
        phase, phase_rule = phases_of(self._host, self._names, launches, launched_in)
        kernel_class = class_of(rows, classes)
        copies = rows["what"] == What.COPY
        computes = ~copies & (kernel_class == KernelClass.COMPUTE)
        fused = kernel_class == KernelClass.FUSED
        talks = kernel_class == KernelClass.COMMUNICATION

        made = self._made_on(rows, launches, alone=alone)
        kernels = np.flatnonzero(talks)
        found = communication_of(rows[kernels], launches.at(kernels), classes, made, self._calls)
        record_of_call = found.record_of_call
        moved = np.flatnonzero(copies)
        by_copies = copy_collectives(
            rows[moved],
            self._between_devices(rows[moved]),
            launches.at(moved),
            made,
            record_of_call >= 0,
            self._calls,
            self._ranks_of,
        )
        record_of_call[by_copies.call] = len(found.records) + np.arange(len(by_copies.call))
        copies[moved[by_copies.used]] = False
        records = np.concatenate((found.records, by_copies.records))
        origin = np.concatenate((kernels[found.order], moved[by_copies.first]))
        records["phase"] = phase[origin]
        records["step"] = np.where(
            launched_in[origin] >= 0,
            _numbers_of(self._steps, launched_in[origin]),
            _numbers_of(steps, step_of(steps, records["start"])),
        )
        names = self._named(np.concatenate((rows["name"], self._shown["name"])))
        self._add_sites(names, records, launches.at(origin))
        payloads = payloads_of(made, self._calls, record_of_call)
        if alone and len(self._on_host):
            mine = on_host.records_of(self._on_host, self._calls)
            mine["step"] = _numbers_of(self._steps, step_of(self._steps, mine["launch"]))
            payloads = _joined(
                payloads, on_host.payloads_of(self._on_host, self._calls, len(records))
            )
            records = np.concatenate((records, mine))
        unknown = [*self._trace.unknown, *self._not_told(records, fused, used, launches, made)]
        if not alone and len(self._on_host):
            because = "the trace does not say for which of its devices they ran"
            unknown.append(Unknown(f"{len(self._on_host)} collectives of the host", because))
        name = self._trace.device_names.get(number, "")
        timeline = Timeline(
            origin=replace(self._trace.origin, device=f"GPU {number}", process=""),
            compute=lane(rows[computes], phase[computes]),
            communication=records,
            copies=lane(rows[copies], phase[copies]),
            fused=lane(rows[fused], phase[fused]),
            ranges=lane(self._shown),
            payloads=payloads,
            phase_rule=phase_rule,
            compute_rule=COMPUTE_RULE,
            steps=steps,
            names=names,
            groups=dict(self._trace.groups),
            skipped=tuple(skipped),
            unknown=tuple(unknown),
        )
        counters = {
            "kernels": int((rows["what"] == What.KERNEL).sum()),
            "communication kernels": int(talks.sum()),
            "fused kernels": int(fused.sum()),
            "copies": len(moved),
            "collectives made of copies": len(by_copies.records),
            "device events without a launch": int((launches.moment == 0).sum()),
            "calls of collectives": len(payloads),
        }
        return self._recording(timeline, counters, {"device": name} if name else {})

    def _recording(
        self, timeline: Timeline, counters: dict[str, int], about: Mapping[str, str] | None = None
    ) -> Recording:
        return Recording(
            timeline=timeline,
            state="profile",
            about={**self._trace.about, **(about or {})},
            counters=counters,
            notes=self._trace.notes,
        )

    def _classes(self, used: NDArray[np.uint32]) -> Classes:
        """Return the classes of all names; only those of kernels are looked at."""
        told = classify([self._names[number - 1] for number in used.tolist()], self._patterns)
        kernel = np.zeros(len(self._names), np.uint8)
        kind = np.zeros(len(self._names), np.uint8)
        because = [""] * len(self._names)
        kernel[used - 1], kind[used - 1] = told.kernel, told.kind
        for number, reason in zip(used.tolist(), told.because, strict=True):
            because[number - 1] = reason
        return Classes(kernel, kind, tuple(because))

    def _named(self, ids: NDArray[np.uint32]) -> dict[int, Name]:
        return {
            number: Name(number, NameKind.OPERATION, self._names[number - 1])
            for number in np.unique(ids).tolist()
        }

    def _add_sites(
        self, names: dict[int, Name], records: NDArray[np.void], launches: Launches
    ) -> None:
        """Give each collective the name of its call site as its owner."""
        numbers: dict[str, int] = {"": 0}
        owners = []
        for site in call_sites(self._host, self._names, launches):
            if site not in numbers:
                number = numbers[site] = len(self._names) + len(numbers)
                names[number] = Name(number, NameKind.OPERATION, site)
            owners.append(numbers[site])
        records["owner"] = owners

    def _between_devices(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        """Say which copies go from one device to another."""
        return np.array(
            [" PtoP " in self._names[one - 1] for one in rows["name"].tolist()], np.bool_
        )

    def _ranks_of(self, group: int) -> int:
        name = self._trace.groups.get(group)
        return name.elements if name else 0

    def _made_on(
        self, rows: NDArray[np.void], launches: Launches, *, alone: bool
    ) -> NDArray[np.void]:
        """Return the calls that were made for this device: by the threads that launch on it."""
        if alone:
            return self._made
        threads = np.unique(launches.thread[launches.moment != 0])
        external = rows["external"][rows["external"] != 0]
        return self._made[
            np.isin(self._made["thread"], threads) | np.isin(self._made["external"], external)
        ]

    def _not_told(
        self,
        records: NDArray[np.void],
        fused: NDArray[np.bool_],
        used: NDArray[np.uint32],
        launches: Launches,
        made: NDArray[np.void],
    ) -> list[Unknown]:
        """Return what this device's events cannot tell."""
        unknown = []
        if not len(records) and not fused.any():
            told = none_recognised([self._names[one - 1] for one in used.tolist()])
            if len(made):
                because = (
                    f"{len(made)} collectives were called and no kernel of theirs was recorded"
                )
                told = replace(told, because=f"{told.because}; {because}")
            unknown.append(told)
        lost = int((launches.moment == 0).sum())
        if lost:
            because = "they were launched before the capture, or no runtime call was recorded"
            unknown.append(Unknown(f"launch of {lost:,} device events", because))
        return unknown


def _numbers_of(steps: NDArray[np.void], place: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the number of the step at each place; 0 where there is none (-1)."""
    if not len(steps):
        return np.zeros(len(place), np.uint32)
    return np.where(place >= 0, steps["step"][place], 0).astype(np.uint32)


def _joined(first: NDArray[np.void], second: NDArray[np.void]) -> NDArray[np.void]:
    joined = np.concatenate((first, second))
    return joined[np.argsort(joined["start"], kind="stable")]
