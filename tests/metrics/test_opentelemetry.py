"""The SDK's own in-memory reader, and its OTLP exporter against a server of this test."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from overlapwatch.log.sinks import Standing
from overlapwatch.metrics import RunOfRank
from overlapwatch.metrics.catalogue import FAMILIES, LEFT_OUT, Shape
from overlapwatch.metrics.opentelemetry import OpenTelemetrySink
from overlapwatch.vocabulary import StepFlag
from tests.metrics.rows import full, row

RUN = RunOfRank(rank=1, local_rank=1, world=2, run_id="abc")
STANDING = Standing(1, 2_000_000_000, 0, 0, 0)


@pytest.fixture
def provider(monkeypatch) -> Iterator[object]:
    """A MeterProvider that the script has set."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    made = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: made)
    made.reader = reader
    yield made
    made.shutdown()


def collected(provider) -> dict[str, object]:
    data = provider.reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        if scope.scope.name == "overlapwatch"
        for metric in scope.metrics
    }


def value(metric):
    (point,) = metric.data.data_points
    assert dict(point.attributes) == {"rank": "1", "run_id": "abc"}
    return point.value


def test_all_families_are_instruments_of_the_scripts_own_provider(provider):
    sink = OpenTelemetrySink(RUN)
    sink.open()
    sink.step(full(1, hidden_ms=30), None)
    sink.step(full(2, hidden_ms=20), None)
    sink.standing(STANDING)
    seen = collected(provider)
    assert {family.dotted for family in FAMILIES} == set(seen)
    assert {family.dotted: family.unit.code for family in FAMILIES} == {
        name: metric.unit for name, metric in seen.items()
    }
    assert value(seen["overlapwatch.hidden_communication"]) == 0.05
    assert seen["overlapwatch.hidden_communication"].data.is_monotonic
    assert value(seen["overlapwatch.last_hidden_communication"]) == 0.02
    assert value(seen["overlapwatch.oldest_in_flight"]) == 2
    (steps,) = seen["overlapwatch.step"].data.data_points
    assert (steps.count, steps.sum) == (2, 0.2)
    (family,) = (one for one in FAMILIES if one.dotted == "overlapwatch.step")
    assert (family.shape, tuple(steps.explicit_bounds)) == (Shape.HISTOGRAM, family.bounds)
    sink.close()


@pytest.mark.e2e
def test_the_sums_of_a_job_are_those_of_its_log(provider, watched):
    sink = OpenTelemetrySink(RUN)
    sink.open()
    for one in watched.rows[1]:
        sink.step(one, None)
    seen = collected(provider)
    rows = watched.counted(1)
    assert value(seen["overlapwatch.steps"]) == len(watched.rows[1])
    exposed = int(rows["communication_only_ns"].sum()) / 1e9
    assert value(seen["overlapwatch.exposed_communication"]) == exposed
    (tails,) = seen["overlapwatch.tail"].data.data_points
    assert (tails.count, tails.sum) == (len(rows), pytest.approx(int(rows["tail_ns"].sum()) / 1e9))
    sink.close()


def test_what_is_not_known_has_no_point_and_reasons_have_one_each(provider):
    sink = OpenTelemetrySink(RUN)
    sink.open()
    shadow = full(1)
    shadow["flags"] = StepFlag.SHADOW
    sink.step(shadow, None)
    sink.step(row(2), None)
    seen = collected(provider)
    assert "overlapwatch.last_tail" not in seen
    assert "overlapwatch.tail" not in seen
    assert "overlapwatch.collectives_in_flight" not in seen
    left_out = {
        point.attributes["because"]: point.value
        for point in seen["overlapwatch.steps_left_out"].data.data_points
    }
    assert left_out == {word: int(word == "shadow") for _, word in LEFT_OUT}
    sink.close()


def test_a_second_watch_takes_over_and_nothing_is_observed_without_one(provider):
    first, second = OpenTelemetrySink(RUN), OpenTelemetrySink(RUN)
    first.open()
    first.step(full(9), None)
    first.close()
    assert "overlapwatch.step_number" not in collected(provider)
    second.open()
    second.step(full(4), None)
    assert value(collected(provider)["overlapwatch.step_number"]) == 4
    second.close()


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP as a collector does."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def collector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.got = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_without_a_provider_it_is_sent_as_the_variables_say(collector, monkeypatch):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=a")
    sink = OpenTelemetrySink(RUN)
    sink.open()
    sink.step(full(5), None)
    sink.standing(STANDING)
    sink.close()  # sends the last state
    path, body = collector.got[-1]
    assert path == "/v1/metrics"
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (about["service.name"], about["cluster"]) == ("overlapwatch", "a")
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert names == {family.dotted for family in FAMILIES}


def test_a_collector_that_is_not_there_is_warned_of_once_and_the_end_comes(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
    sink = OpenTelemetrySink(RUN)
    sink.open()
    sink.step(full(1), None)
    while not caplog.records:
        pass
    sink.close()
    (told,) = caplog.messages
    assert told.startswith("metrics to OpenTelemetry cannot be sent: nobody takes them")
