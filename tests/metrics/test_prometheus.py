"""Both ranks of a running job scraped over HTTP; the text file; what can go wrong with ports and paths."""

import os
import socket
import urllib.request
import warnings

import pytest

from overlapwatch.errors import ConfigurationError, OverlapwatchError
from overlapwatch.log.sinks import Standing, open_sinks
from overlapwatch.metrics import RunOfRank, makers, prometheus
from overlapwatch.metrics.prometheus import PrometheusFileSink, PrometheusSink
from overlapwatch.vocabulary import StepFlag
from tests.metrics.conftest import PAUSE, get
from tests.metrics.rows import full, of_rank, scraped
from tests.support import jobs

RUN = RunOfRank(rank=3, local_rank=1, world=4, run_id='a"b')
SUMS = {
    "compute_only": "compute_only_ns",
    "hidden_communication": "overlap_ns",
    "exposed_communication": "communication_only_ns",
    "idle": "idle_ns",
    "wait": "wait_ns",
}


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [0, 1])
def test_a_scrape_of_a_running_rank_adds_up_to_its_log(watched, rank):
    samples = scraped(watched.scrapes[rank])
    seen = of_rank(samples, rank)
    last = int(seen["overlapwatch_step_number"])
    rows = watched.counted(rank, before=last + 1)
    assert last == PAUSE - 1 - rank  # rank 0 has begun the next step, rank 1 waits before it
    assert len(rows) > 10
    assert seen["overlapwatch_steps_total"] == last
    assert seen["overlapwatch_step_seconds_count"] == len(rows)
    took = int((rows["end_ns"] - rows["start_ns"]).sum())
    assert seen["overlapwatch_step_seconds_sum"] == took / 1e9
    for name, field in SUMS.items():
        assert seen[f"overlapwatch_{name}_seconds_total"] == int(rows[field].sum()) / 1e9
    parts = ("compute_only", "hidden_communication", "exposed_communication", "idle")
    total = sum(seen[f"overlapwatch_{part}_seconds_total"] for part in parts)
    assert total == pytest.approx(seen["overlapwatch_step_seconds_sum"], rel=1e-12)
    assert seen["overlapwatch_tail_seconds_sum"] == int(rows["tail_ns"].sum()) / 1e9
    assert seen["overlapwatch_last_tail_seconds"] == int(rows["tail_ns"][-1]) / 1e9
    assert seen["overlapwatch_payload_bytes_total"] == int(rows["bytes"].sum())
    assert seen["overlapwatch_last_buckets"] == rows["buckets"][-1] == 4
    assert seen["overlapwatch_records_lost_total"] == 0


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_left_out_is_counted_by_reason(watched, rank):
    because = {
        dict(labels)["because"]: value
        for (name, labels), value in scraped(watched.scrapes[rank]).items()
        if name == "overlapwatch_steps_left_out_total"
    }
    assert (because["unbucketed"], because["rebuilt"], because["shadow"]) == (1, 1, 2)
    assert because["partial"] == because["disturbed"] == because["first_batch"] == 0


@pytest.mark.e2e
def test_a_rank_that_waits_for_another_shows_it_while_no_step_ends(watched):
    seen = of_rank(scraped(watched.scrapes[0]), 0)
    assert seen["overlapwatch_collectives_in_flight"] > 0
    assert seen["overlapwatch_oldest_in_flight_seconds"] > 0.5
    assert (
        len(scraped(watched.scrapes[0])) == 79
    )  # as docs/metrics.md says: all is known of this rank
    waiting = of_rank(scraped(watched.scrapes[1]), 1)
    assert waiting["overlapwatch_collectives_in_flight"] == 0
    assert "overlapwatch_oldest_in_flight_seconds" not in waiting


@pytest.mark.e2e
def test_every_rank_has_an_endpoint_and_a_file_and_one_run(watched):
    for rank, (scrape, file) in enumerate(zip(watched.scrapes, watched.files, strict=True)):
        for text in (scrape, file):
            labels = {(dict(found)["rank"], dict(found)["run_id"]) for _, found in scraped(text)}
            assert labels == {(str(rank), watched.run_id)}
        assert not (watched.directory / f"{rank}.prom").exists()  # the run is over
    assert watched.stderr == ("", "")


@pytest.mark.e2e
def test_lines_still_come_as_line_every_says_and_from_rank_0(watched):
    lines = [line.split()[1] for line in watched.stdout[0].splitlines() if line[:5] == "step "]
    assert {"10", "20"} <= set(lines)
    assert "11" not in lines
    assert watched.stdout[1] == ""


@pytest.fixture
def served():
    sink = PrometheusSink(str(jobs.free_port()), RUN)
    sink.open()
    yield sink
    sink.close()


def test_labels_are_escaped_and_other_formats_are_served(served):
    served.step(full(1), None)
    assert of_rank(scraped(get(served.port)), 3)["overlapwatch_last_overlap_ratio"] == 0.75
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/metrics",
        headers={"Accept": "application/openmetrics-text; version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    units = {family.name: family.unit for family in text_string_to_metric_families(text)}
    assert units["overlapwatch_step_seconds"] == "seconds"
    assert units["overlapwatch_payload_bytes"] == "bytes"
    assert units["overlapwatch_last_overlap_ratio"] == "ratio"
    assert units["overlapwatch_steps"] == ""


def test_only_this_host_is_served_and_the_port_is_free_again():
    port = jobs.free_port()
    for _ in range(2):
        sink = PrometheusSink(str(port), RUN)
        assert (sink.host, sink.port) == ("127.0.0.1", port + 1)
        sink.open()
        assert get(port + 1)
        sink.close()


def test_a_forked_process_does_not_keep_the_port():
    sink = PrometheusSink(str(jobs.free_port()), RUN)
    sink.open()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons: threads and fork
        child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent is through
        os._exit(0)
    try:
        sink.close()
        again = PrometheusSink(str(sink.port - RUN.local_rank), RUN)
        again.open()
        assert get(again.port)
        again.close()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_an_address_can_be_given():
    sinks = [PrometheusSink(where, RUN) for where in ("0.0.0.0:9450", "[::1]:9450", "node-7:9450")]
    assert [(one.host, one.port) for one in sinks] == [
        ("0.0.0.0", 9451),
        ("::1", 9451),
        ("node-7", 9451),
    ]


def test_a_port_in_use_is_one_sentence_and_the_other_sinks_go_on(tmp_path):
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sinks = open_sinks(
            (f"prometheus:{port - 1}", f"jsonl:{tmp_path}/steps"),
            3,
            said.append,
            more=makers(RUN, None),
        )
        sinks.open()
    assert len(sinks) == 1
    (told,) = said
    assert told == (
        f"rank 3 has no Prometheus endpoint: 127.0.0.1 port {port} cannot be listened on "
        "(Address already in use); training goes on, another base port is set in sinks, as prometheus:PORT"
    )
    sinks.step(full(1), "step 1")
    sinks.close()
    assert (tmp_path / "steps").read_text().count("\n") == 1


@pytest.mark.parametrize("where", ["0", "http", "65535", "127.0.0.1:", "99999", "²"])
def test_no_port_for_every_rank_is_refused_on_all_ranks_alike(where, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for local_rank in (0, 1):
        run = RunOfRank(local_rank, local_rank, 2, "x")
        with pytest.raises(ConfigurationError, match="PORT is a number from 1 to 65534"):
            PrometheusSink(where, run)


def test_a_file_is_written_whole_and_goes_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(prometheus, "FILE_EVERY_S", 0)
    sink = PrometheusFileSink(f"{tmp_path}/new/{{rank}}.prom", RUN, alone=False)
    sink.open()
    path = tmp_path / "new" / "3.prom"
    assert of_rank(scraped(path.read_text()), 3)["overlapwatch_steps_total"] == 0
    shadow = full(2)
    shadow["flags"] = StepFlag.SHADOW
    sink.step(full(1), None)
    sink.step(shadow, None)
    sink.standing(Standing(1, 2_000_000_000, 0, 0, 0))
    seen = of_rank(scraped(path.read_text()), 3)
    assert seen["overlapwatch_steps_total"] == 2
    assert seen["overlapwatch_step_seconds_count"] == 1
    assert seen["overlapwatch_oldest_in_flight_seconds"] == 2
    assert list(path.parent.iterdir()) == [path]
    sink.close()
    assert list(path.parent.iterdir()) == []


def test_a_file_that_node_exporter_would_not_read_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"must end in \.prom"):
        PrometheusFileSink(f"{tmp_path}/{{rank}}.txt", RUN, alone=False)
    with pytest.raises(ConfigurationError, match=r"one file for several ranks: put \{rank\}"):
        PrometheusFileSink(f"{tmp_path}/a.prom", RUN, alone=False)
    assert PrometheusFileSink(f"{tmp_path}/a.prom", RUN, alone=True).path == tmp_path / "a.prom"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    sink = PrometheusFileSink(f"{tmp_path}/file/a.prom", RUN, alone=True)
    with pytest.raises(
        OverlapwatchError, match=r"cannot be written \((File exists|Not a directory)\)"
    ):
        sink.open()
