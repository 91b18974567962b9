"""OpenTelemetry: all families of the catalogue, as instruments of a meter.

In: SUMMARY rows, and what is known between steps. Out: the meter `overlapwatch` of the MeterProvider that the script
has set, or, without one, of a provider of our own that sends OTLP over HTTP as the `OTEL_*` variables say. Names are
dotted; the usual translation makes the Prometheus names of them. Attributes are `rank` and `run_id`. Gauges and
counters are observed when the SDK collects, histograms are recorded with each step. What is sent, and when, is the
SDK's: on its own thread, so nothing here waits for a network.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import overlapwatch
from overlapwatch.log.sinks import Standing
from overlapwatch.metrics.catalogue import FAMILIES, OF_A_STEP, PREFIX, Family, Shape
from overlapwatch.metrics.run_of_rank import RunOfRank, need
from overlapwatch.metrics.tally import Tally

CLOSE_MS = 3000


class OpenTelemetrySink:
    """Keeps a rank's metrics in a meter.

    Args:
        run: this rank.

    Raises:
        ConfigurationError: the SDK or its OTLP exporter is not installed.

    """

    title = "OpenTelemetry"

    def __init__(self, run: RunOfRank) -> None:
        for module, package in (
            ("opentelemetry.sdk.metrics", "opentelemetry-sdk"),
            (
                "opentelemetry.exporter.otlp.proto.http.metric_exporter",
                "opentelemetry-exporter-otlp-proto-http",
            ),
        ):
            need(module, package, "otel")
        self._attributes: dict[str, Any] = run.labels
        self._pid = os.getpid()
        self._tally = Tally()
        self._histograms: dict[str, Any] = {}
        self._meter: Any = None
        self._own_provider: Any = None

    def open(self) -> None:
        """Make the instruments."""
        from opentelemetry.metrics import get_meter_provider  # noqa: PLC0415 - only when used
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415

        provider = get_meter_provider()
        if not isinstance(provider, MeterProvider):
            self.title = "OpenTelemetry by OTLP over HTTP"
            provider = self._own_provider = _own_provider()
        self._meter = provider.get_meter(PREFIX, overlapwatch.__version__)
        make: dict[Shape, Callable[..., Any]] = {
            Shape.GAUGE: self._meter.create_observable_gauge,
            Shape.COUNTER: self._meter.create_observable_counter,
        }
        for family in FAMILIES:
            about = {"unit": family.unit.code, "description": family.help}
            if family.shape is Shape.HISTOGRAM:
                self._histograms[family.stem] = self._meter.create_histogram(
                    family.dotted, explicit_bucket_boundaries_advisory=family.bounds, **about
                )
            else:
                observe = _observer(family, self._meter)
                make[family.shape](family.dotted, callbacks=[observe], **about)
        _OPEN.append(self)

    def step(self, summary: np.void, line: str | None) -> None:  # noqa: ARG002 - the protocol's
        """Add the step."""
        known = self._tally.take(summary)
        if known is None:
            return
        for one in OF_A_STEP:
            if one.histogram is not None and one.name in known.values:
                self._histograms[one.histogram.stem].record(
                    known.values[one.name], self._attributes
                )

    def standing(self, standing: Standing) -> None:
        """Take in what is known between steps."""
        self._tally.stand(standing)

    def close(self) -> None:
        """Send the last state where the provider is ours; observe nothing any more."""
        try:
            if self._own_provider is not None:
                self._own_provider.shutdown(timeout_millis=CLOSE_MS)
        finally:
            if self in _OPEN:
                _OPEN.remove(self)

    def observe(self, family: Family) -> Iterable[Any]:
        """Return what is known of a family now."""
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - only when used

        for own, value in self._tally.values()[family.name].items():
            more = {family.label: own} if family.label else {}
            yield Observation(value, {**self._attributes, **more})

    def of(self, meter: Any) -> bool:
        """Whether it keeps its metrics in this meter, and in this process: a forked one has a copy."""
        return self._meter is meter and self._pid == os.getpid()


_OPEN: list[OpenTelemetrySink] = []
"""A meter keeps the first callback of a name for good, so callbacks ask here who is open now."""


def _observer(family: Family, meter: Any) -> Callable[[Any], Iterable[Any]]:
    def observe(_options: Any) -> Iterable[Any]:
        return [one for sink in tuple(_OPEN) if sink.of(meter) for one in sink.observe(family)]

    return observe


def _own_provider() -> Any:
    """Return a provider that sends OTLP over HTTP; it is not made the script's."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
        OTLPMetricExporter,
    )
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        MetricExportResult,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    pid = os.getpid()
    logger = logging.getLogger(OTLPMetricExporter.__module__)

    class OfThisProcess(OTLPMetricExporter):  # type: ignore[misc, unused-ignore]
        """Says once, not several times a minute on every rank, that nobody takes the metrics.

        The SDK goes on exporting in forked processes, such as a loader's workers; they would repeat old numbers.
        """

        warned = False

        def export(self, *args: Any, **kwargs: Any) -> Any:
            if os.getpid() != pid:
                return MetricExportResult.SUCCESS
            with _quiet_here(logger):
                result = super().export(*args, **kwargs)
            if result is not MetricExportResult.SUCCESS and not self.warned:
                self.warned = True
                logging.getLogger("overlapwatch").warning(
                    "metrics to OpenTelemetry cannot be sent: nobody takes them where "
                    "OTEL_EXPORTER_OTLP_ENDPOINT points (http://localhost:4318 without it); "
                    "it is tried again, training goes on"
                )
            return result

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": PREFIX}))
    reader = PeriodicExportingMetricReader(OfThisProcess())
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)


@contextlib.contextmanager
def _quiet_here(logger: logging.Logger) -> Iterator[None]:
    """Drop what this thread logs there; other threads may export metrics of the script."""
    here = threading.get_ident()

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(from_elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(from_elsewhere)
