"""Prometheus: an endpoint a rank that is scraped over HTTP, or a text file a rank for node_exporter.

In: SUMMARY rows, and what is known between steps. Out: all families of the catalogue, with the labels `rank` and
`run_id`, by prometheus_client. A scrape reads one state of the tally, on the server's thread; the drain thread never
waits for a scraper. The process's own metrics and those that the script keeps in the library's default registry are
left alone.
"""

import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from overlapwatch.errors import ConfigurationError, OverlapwatchError
from overlapwatch.log.sinks import Standing
from overlapwatch.metrics.catalogue import FAMILIES, Family, Shape
from overlapwatch.metrics.run_of_rank import RunOfRank, need
from overlapwatch.metrics.tally import Spread, Tally, Values

LOOPBACK = "127.0.0.1"
FILE_EVERY_S = 5.0


class _Families:
    """What prometheus_client asks for the metrics of a rank: a collector."""

    def __init__(self, tally: Tally, run: RunOfRank) -> None:
        self._tally = tally
        self._labels = run.labels

    def describe(self) -> list[Any]:
        """Nothing in advance: names are known to be apart."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return the families that have a value now."""
        values = self._tally.values()
        for family in FAMILIES:
            if values[family.name]:
                yield _as_metric(family, self._labels, values[family.name])


def _as_metric(family: Family, labels: dict[str, str], values: Values) -> Any:
    from prometheus_client import core  # noqa: PLC0415 - only when used

    kinds: dict[Shape, Any] = {
        Shape.GAUGE: core.GaugeMetricFamily,
        Shape.COUNTER: core.CounterMetricFamily,
        Shape.HISTOGRAM: core.HistogramMetricFamily,
    }
    names = [*labels, *([family.label] if family.label else [])]
    metric = kinds[family.shape](family.name, family.help, labels=names, unit=family.unit.suffix)
    for own, value in values.items():
        texts = [*labels.values(), *([own] if family.label else [])]
        if isinstance(value, Spread):
            metric.add_metric(texts, _cumulated(family.bounds, value), value.sum)
        else:
            metric.add_metric(texts, value)
    return metric


def _cumulated(bounds: tuple[float, ...], spread: Spread) -> list[tuple[str, float]]:
    """Return (upper bound, values at or below it) as Prometheus has them."""
    sums = np.cumsum(spread.counts).tolist()
    return list(zip([*map(str, bounds), "+Inf"], sums, strict=True))


def _registry(tally: Tally, run: RunOfRank) -> Any:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - only when used

    registry = CollectorRegistry()
    registry.register(_Families(tally, run))
    return registry


class PrometheusSink:
    """Serves a rank's metrics.

    Args:
        where: `PORT` or `HOST:PORT`; the rank's port is PORT + local rank, the host loopback.
        run: this rank.

    Raises:
        ConfigurationError: that is no port, or prometheus_client is not installed.

    """

    def __init__(self, where: str, run: RunOfRank) -> None:
        need("prometheus_client", "prometheus-client", "prometheus")
        host, _, port = where.rpartition(":")
        self.host = host.strip("[]") or LOOPBACK
        # All ranks refuse alike: a host has at most as many as there are.
        last = int(os.environ.get("LOCAL_WORLD_SIZE", run.world)) - 1
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535 - last):
            raise ConfigurationError(
                f"prometheus:{where} has no port for every rank of a host: PORT is a number from 1 to "
                f"{65_535 - last}, and rank N of a host serves PORT + N"
            )
        self.port = int(port) + run.local_rank
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.title = f"Prometheus at http://{shown}:{self.port}/metrics"
        self._run = run
        self._tally = Tally()
        self._server: Any = None
        self._thread: Any = None

    def open(self) -> None:
        """Listen.

        Raises:
            OverlapwatchError: the port is in use, or the address is not this host's.

        """
        from prometheus_client import start_http_server  # noqa: PLC0415 - only when used

        try:
            self._server, self._thread = start_http_server(
                self.port, self.host, registry=_registry(self._tally, self._run)
            )
        except OSError as error:
            raise OverlapwatchError(
                f"rank {self._run.rank} has no Prometheus endpoint: {self.host} port {self.port} cannot be "
                f"listened on ({error.strerror}); training goes on, another base port is set in "
                "sinks, as prometheus:PORT"
            ) from None
        _LISTENING.add(self._server)

    def step(self, summary: np.void, line: str | None) -> None:  # noqa: ARG002 - the protocol's
        """Add the step."""
        self._tally.take(summary)

    def standing(self, standing: Standing) -> None:
        """Take in what is known between steps."""
        self._tally.stand(standing)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(1)
            self._server = None


_LISTENING: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked process (a loader's worker) would keep the port taken after its parent is gone."""
    for server in tuple(_LISTENING):
        server.socket.close()


os.register_at_fork(after_in_child=_let_go_in_child)


class PrometheusFileSink:
    """Writes a rank's metrics to a file for node_exporter's textfile collector, every few seconds.

    The file is whole whenever it is looked at. It is removed when the watch closes: node_exporter would show a run's
    last values for ever.

    Args:
        path: of the file, with {rank} in it where several ranks write one.
        run: this rank.
        alone: whether no other rank writes one.

    Raises:
        ConfigurationError: node_exporter would not read that, or prometheus_client is not installed.

    """

    def __init__(self, path: str, run: RunOfRank, *, alone: bool) -> None:
        need("prometheus_client", "prometheus-client", "prometheus")
        if not path.endswith(".prom"):
            raise ConfigurationError(
                f"prometheus-file:{path} must end in .prom: node_exporter reads no other files"
            )
        if not alone and "{rank}" not in path:
            raise ConfigurationError(
                f"prometheus-file:{path} would be one file for several ranks: put {{rank}} into its name"
            )
        self.path = Path(path.replace("{rank}", str(run.rank)))
        self.title = f"node_exporter in {self.path}"
        self._run = run
        self._tally = Tally()
        self._registry: Any = None
        self._written_s = 0.0

    def open(self) -> None:
        """Write the file for the first time.

        Raises:
            OverlapwatchError: it cannot be written.

        """
        self._registry = _registry(self._tally, self._run)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as error:
            raise OverlapwatchError(
                f"rank {self._run.rank} has no metrics in {self.path}, which cannot be written "
                f"({error.strerror}); training goes on"
            ) from None

    def step(self, summary: np.void, line: str | None) -> None:  # noqa: ARG002 - the protocol's
        """Add the step."""
        self._tally.take(summary)

    def standing(self, standing: Standing) -> None:
        """Take in what is known between steps; write the file when it is time."""
        self._tally.stand(standing)
        if time.monotonic() - self._written_s >= FILE_EVERY_S:
            self._write()

    def close(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        from prometheus_client import write_to_textfile  # noqa: PLC0415 - only when used

        write_to_textfile(str(self.path), self._registry)
        self._written_s = time.monotonic()
