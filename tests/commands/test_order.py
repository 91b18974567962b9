import json

import pytest

from overlapwatch.commands import main
from tests.sources.test_flight_recorder import dump, entry, write


@pytest.fixture
def dumps(tmp_path):
    def make(*ranks):
        return [
            str(write(tmp_path / f"trace_rank_{n}", dump(*some))) for n, some in enumerate(ranks)
        ]

    return make


def test_the_same_order(dumps, capsys) -> None:
    same = [entry(1), entry(2)]
    assert main(["order", *dumps(same, same)]) == 0
    out = capsys.readouterr().out
    assert "they issue the same collectives in 1 group" in out
    assert "no time in it is used here" in out


def test_a_difference_is_exit_code_3_and_in_json(dumps, capsys) -> None:
    same = [entry(1), entry(2)]
    paths = dumps(same, same, [entry(1), entry(2, sent=((11,),))])
    assert main(["order", "--json", *paths]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["order"]["groups"][0]["mismatch"]["minority"] == [2]
    assert all(check["ok"] for check in found["order"]["closure"])


def test_a_directory_and_what_cannot_be_read_in_it(dumps, tmp_path, capsys) -> None:
    dumps([entry(1)], [entry(1)])
    (tmp_path / "trace_rank_2").write_bytes(b"\x80\x02cos\nsystem\n.")
    (tmp_path / "readme").write_text("no dump")
    assert main(["order", str(tmp_path)]) == 0
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert "2 ranks (0, 1)" in out
    assert out.count("left out:") == 2


def test_nothing_readable_is_one_sentence(tmp_path, capsys) -> None:
    (tmp_path / "trace_rank_0").write_text("no dump")
    assert main(["order", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("overlapwatch: ")


def test_output_and_width(dumps, tmp_path, capsys) -> None:
    to = tmp_path / "out.txt"
    assert (
        main(["order", "--output", str(to), "--width", "60", *dumps([entry(1)], [entry(1)])]) == 0
    )
    assert max(map(len, to.read_text().splitlines())) <= 60
    assert capsys.readouterr().out == ""
    assert main(["order", "--width", "x", str(to)]) == 2
