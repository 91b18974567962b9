import json
import logging

import pytest

from overlapwatch.errors import ConfigurationError
from overlapwatch.log.sinks import CallbackSink, StepSinks, StreamSink, as_dict, open_sinks, parse
from overlapwatch.vocabulary import SUMMARY, StepFlag
from tests.log.samples import step_summary

ROW = step_summary(12, flags=StepFlag.SLOW | StepFlag.EVENTS_KEPT)[0]


def test_a_row_as_a_dict_has_every_field_with_null_for_what_is_not_known():
    row = as_dict(ROW, 3)
    assert list(row) == ["rank", *SUMMARY.names]
    assert (row["rank"], row["step"], row["tail_ns"]) == (3, 12, 0)
    assert row["communication_ns"] is None
    assert row["flags"] == ["slow", "events_kept"]
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_lines_on_a_stream(capsys, name):
    sinks = open_sinks((name,), 0)
    sinks.step(ROW, "step 12")
    sinks.close()
    assert getattr(capsys.readouterr(), name[3:]) == "step 12\n"


def test_lines_and_objects_in_files_are_there_at_once(tmp_path):
    specs = (f"text:{tmp_path}/new/lines.txt", f"jsonl:{tmp_path}/{{rank}}.jsonl", "none")
    sinks = open_sinks(specs, 5)
    assert len(sinks) == 2
    sinks.step(ROW, "one")
    sinks.step(ROW, "two")
    assert (tmp_path / "new" / "lines.txt").read_text() == "one\ntwo\n"
    lines = (tmp_path / "5.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [as_dict(ROW, 5)] * 2
    sinks.close()


def test_a_callback_gets_the_dict():
    got = []
    sinks = open_sinks((got.append,), 2)
    sinks.step(ROW, "line")
    assert got == [as_dict(ROW, 2)]


def test_an_object_of_the_users_is_taken_as_it_is():
    class Mine:
        def __init__(self):
            self.got = []

        def step(self, summary, line):
            self.got.append((int(summary["step"]), line))

        def close(self):
            self.got.append("closed")

    mine = Mine()
    sinks = open_sinks((mine,), 0)
    sinks.step(ROW, "line")
    sinks.close()
    assert mine.got == [(12, "line"), "closed"]


def test_a_failing_sink_is_dropped_with_one_warning_and_the_rest_go_on():
    def fail(_):
        raise KeyError("loss")

    got, warnings = [], []
    sinks = StepSinks([CallbackSink(fail, 0), CallbackSink(got.append, 0)], warnings.append)
    sinks.step(ROW, "")
    sinks.step(ROW, "")
    assert len(got) == 2
    assert warnings == ["step lines to CallbackSink stopped: KeyError: 'loss'"]
    assert len(sinks) == 1


def test_a_full_disk_drops_a_file_sink_and_says_so_in_the_log(caplog):
    sinks = open_sinks(("text:/dev/full",), 0)
    with caplog.at_level(logging.WARNING, "overlapwatch"):
        sinks.step(ROW, "line")
        sinks.step(ROW, "line")
        sinks.close()
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert len(sinks) == 0


def test_a_closed_stream_drops_that_sink(monkeypatch):
    class Closed:
        def write(self, _):
            raise BrokenPipeError(32, "Broken pipe")

    warnings = []
    monkeypatch.setattr("sys.stdout", Closed())
    sinks = StepSinks([StreamSink("stdout")], warnings.append)
    sinks.step(ROW, "line")
    assert len(warnings) == 1


@pytest.mark.parametrize("spec", ["stdoutt", "text", "text:", "jsonl:", "stdout:x", "none:x", ""])
def test_an_unknown_sink_lists_the_known_ones(spec):
    with pytest.raises(ConfigurationError, match=r"stdout, stderr, none, text:PATH, jsonl:PATH"):
        parse(spec, 0)


def test_what_is_no_sink_at_all_and_what_cannot_be_opened(tmp_path):
    with pytest.raises(ConfigurationError, match="not 5"):
        parse(5, 0)
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        parse(f"text:{tmp_path}", 0)
