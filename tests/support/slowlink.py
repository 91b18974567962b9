"""A network as slow as a test wants it: one namespace per rank, joined by links of a known rate.

In: a number of ranks and a rate. Out: a `SlowLink`, whose `run_ranks` runs a script with every rank in its own
namespace. Every rank sends through a token bucket (`tc tbf`) into a switch; nothing else is shared, and nothing leaves
the namespaces, which have no other interface. The rate is that of the wire, headers included: a test that needs exact
times measures its own all-reduce first.

Needs root and iproute2. `unavailable()` says why it cannot be used here; `requires_slow_link` skips with that reason.
Namespaces are named after the process that made them, removed in any case, and those of a killed run are removed by
the next.
"""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support import jobs

_INTERFACE = "link0"
_NETWORK = "10.77.0"
_QUEUE_MS = 200  # how long a packet may wait in the bucket's queue before it is dropped
_BURST_MS = 8  # how much may leave at once after a pause; with less, a late timer on a busy machine loses rate
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Namespaces that are up. `namespaces[rank]` is the rank's own."""

    namespaces: tuple[str, ...]
    rate_mbit: float
    burst_ms: float = _BURST_MS

    def prefix(self, rank: int) -> list[str]:
        """Return the words that put a command into a rank's namespace."""
        return ["ip", "netns", "exec", self.namespaces[rank]]

    def change_rate(self, rank: int, rate_mbit: float) -> None:
        """Let one rank send at another rate (10^6 bits per second)."""
        _limit(self.namespaces[rank], rate_mbit, self.burst_ms, "change")

    def run_ranks(
        self,
        script: str | Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> jobs.JobResult:
        """Run a script with each rank in its namespace, and wait for all of them. See `jobs.run_ranks`."""
        link = {
            "MASTER_ADDR": _address(0),
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": _INTERFACE,
        }
        return jobs.run_ranks(
            script,
            len(self.namespaces),
            args=args,
            env={**link, **(env or {})},
            timeout_s=timeout_s,
            prefix=self.prefix,
        )


@contextmanager
def slow_link(ranks: int, rate_mbit: float, burst_ms: float = _BURST_MS) -> Iterator[SlowLink]:
    """Join `ranks` namespaces by a switch; each sends at `rate_mbit` (10^6 bits per second).

    What `burst_ms` of that rate would carry leaves at once after a pause. For a link whose time is latency + bytes/rate,
    as real ones are, this must be small beside a message.
    """
    _remove_orphans()
    name = f"ow-{os.getpid()}-{next(_numbers)}"
    switch = f"{name}-switch"
    namespaces = tuple(f"{name}-{rank}" for rank in range(ranks))
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "switch0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "switch0", "up")
        for rank, namespace in enumerate(namespaces):
            _join(namespace, rank, switch, rate_mbit, burst_ms)
        yield SlowLink(namespaces, rate_mbit, burst_ms)
    finally:
        for namespace in (*namespaces, switch):
            _remove(namespace)


@cache
def unavailable() -> str | None:
    """Return why a slow link cannot be made here, or None. Tries one, once."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (package iproute2)"
    try:
        with slow_link(1, rate_mbit=100):
            return None
    except RuntimeError as error:
        return f"this machine cannot make one: {error}"


def requires_slow_link(test: Callable[..., object]) -> Callable[..., object]:
    """Mark a test as needing a slow link, and skip it with the reason where there is none."""
    reason = unavailable()
    skip = pytest.mark.skipif(reason is not None, reason=reason or "")
    return pytest.mark.netns(skip(test))


def _join(namespace: str, rank: int, switch: str, rate_mbit: float, burst_ms: float) -> None:
    port = f"port{rank}"
    _run("ip", "netns", "add", namespace)
    _run("ip", "-n", namespace, "link", "set", "lo", "up")
    _run(
        *("ip", "link", "add", _INTERFACE, "netns", namespace),
        *("type", "veth", "peer", "name", port, "netns", switch),
    )
    _run("ip", "-n", switch, "link", "set", port, "master", "switch0", "up")
    _run("ip", "-n", namespace, "addr", "add", f"{_address(rank)}/24", "dev", _INTERFACE)
    _run("ip", "-n", namespace, "link", "set", _INTERFACE, "up")
    _limit(namespace, rate_mbit, burst_ms, "add")


def _limit(namespace: str, rate_mbit: float, burst_ms: float, verb: str) -> None:
    bytes_per_ms = rate_mbit * 1e6 / 8 / 1000
    burst = int(max(bytes_per_ms * burst_ms, 16_000))  # not below a few packets
    queue = int(max(bytes_per_ms * _QUEUE_MS, 256_000)) + burst
    _run(
        *("tc", "-n", namespace, "qdisc", verb, "dev", _INTERFACE, "root", "tbf"),
        *("rate", f"{rate_mbit}mbit", "burst", str(burst), "limit", str(queue)),
    )


def _address(rank: int) -> str:
    return f"{_NETWORK}.{rank + 1}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}`: {done.stderr.strip() or done.returncode}")


def _remove(namespace: str) -> None:
    # A namespace that was never made is no error here: this also cleans up after a failed start.
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _remove_orphans() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        name = line.split()[0] if line.strip() else ""
        made_by = re.match(r"ow-(\d+)-", name)
        if made_by and not Path("/proc", made_by[1]).exists():
            _remove(name)
