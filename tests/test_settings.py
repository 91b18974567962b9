"""Every setting: where its value comes from, what it takes, and the one sentence for what it does not."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from overlapwatch.errors import ConfigurationError
from overlapwatch.settings import PREFIX, Settings, describe, resolve


def test_an_argument_wins_over_a_variable_and_that_over_the_default() -> None:
    assert resolve({}, {}) == Settings()
    assert resolve({}, {"OVERLAPWATCH_KEEP_FIRST": "7"}).keep_first == 7
    assert resolve({"keep_first": 9}, {"OVERLAPWATCH_KEEP_FIRST": "7"}).keep_first == 9
    assert resolve({}, {"KEEP_FIRST": "7", "overlapwatch_keep_first": "7"}) == Settings()


def test_an_argument_hides_a_variable_that_makes_no_sense() -> None:
    assert resolve({"keep_first": 9}, {"OVERLAPWATCH_KEEP_FIRST": "many"}).keep_first == 9


def test_every_setting_can_be_given_both_ways_with_the_same_result() -> None:
    texts: dict[str, tuple[Any, str]] = {
        "log_dir": (Path("runs/a"), "runs/a"),
        "disable": (True, "1"),
        "mode": ("hook", "hook"),
        "sinks": (["stderr", "jsonl:x"], "stderr,jsonl:x"),
        "sink_ranks": ([0, 3], "0, 3"),
        "line_every": (2, "2"),
        "ranks_every": (25, "25"),
        "keep_first": (3, "3"),
        "keep_every": (4, "4"),
        "gradients_every": (5, "5"),
        "shadow_every": (0, "0"),
        "kernels_every": (6, "6"),
        "max_log_mb": (7, "7"),
        "ring_slots": (1024, "1024"),
        "ring_dir": (Path("/dev/shm"), "/dev/shm"),
        "drain_ms": (8, "8"),
        "hang_seconds": (9, "9"),
        "events": ("phases", "phases"),
        "nvtx": ("on", "on"),
        "nvml": ("off", "off"),
    }
    assert set(texts) == {field.name for field in fields(Settings)}
    arguments = {name: value for name, (value, _) in texts.items()}
    variables = {PREFIX + name.upper(): text for name, (_, text) in texts.items()}
    assert resolve(arguments, {}) == resolve({}, variables) != Settings()


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("log_dir", "", None),
        ("log_dir", None, None),
        ("log_dir", "~", Path.home()),
        ("sinks", "none", ("none",)),
        ("sinks", " stdout , text:a b ", ("stdout", "text:a b")),
        ("sinks", print, (print,)),
        ("sink_ranks", "all", None),
        ("sink_ranks", None, None),
        ("sink_ranks", 2, (2,)),
        ("sink_ranks", [], ()),
        ("disable", "false", False),
        ("disable", " ON ", True),
        ("disable", "", False),
        ("keep_first", 10.0, 10),
        ("ring_slots", 1 << 8, 256),
    ],
)
def test_what_a_setting_takes(name: str, value: Any, result: Any) -> None:
    assert getattr(resolve({name: value}, {}), name) == result


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("keep_every", 0, "keep_every must be between 1 and"),
        ("keep_first", -1, "keep_first must be between 0 and"),
        ("keep_first", "many", "keep_first must be a whole number, not 'many'"),
        ("keep_first", 2.5, "keep_first must be a whole number, not 2.5"),
        ("keep_first", None, "keep_first must be a whole number, not None"),
        ("keep_first", float("inf"), "keep_first must be a whole number, not inf"),
        ("keep_first", float("nan"), "keep_first must be a whole number, not nan"),
        ("ring_slots", 1000, "ring_slots must be a power of two, not 1000"),
        ("ring_slots", 128, "ring_slots must be between 256 and"),
        ("mode", "active", "mode must be one of auto, passive, hook, off, not 'active'"),
        ("mode", ["hook"], "mode must be one of"),
        ("events", "all", "events must be one of auto, host, pairs, phases"),
        ("nvtx", True, "nvtx must be one of auto, on, off, not True"),
        ("disable", "maybe", "disable must be 1 or 0, not 'maybe'"),
        ("sink_ranks", "0,x", "sink_ranks must be a whole number, not 'x'"),
        ("sink_ranks", -1, "sink_ranks must be between 0 and"),
        ("log_dir", 3, "log_dir must be a path, not 3"),
        ("log_dir", "~nobody-of-that-name/x", "log_dir must be a path"),
    ],
)
def test_what_it_does_not_take_is_one_sentence(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        resolve({name: value}, {})
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)
    if isinstance(value, str):
        with pytest.raises(ConfigurationError, match="^OVERLAPWATCH_" + name.upper()):
            resolve({}, {PREFIX + name.upper(): value})


def test_an_unknown_setting_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as told:
        resolve({"log": "runs/a"}, {})
    assert str(told.value).startswith("watch() has no setting 'log'; it has log_dir, disable, ")


@pytest.mark.parametrize(
    ("arguments", "active"),
    [({}, True), ({"disable": True}, False), ({"mode": "off"}, False), ({"mode": "hook"}, True)],
)
def test_two_settings_switch_it_off(arguments: dict[str, Any], active: bool) -> None:
    assert resolve(arguments, {}).active is active


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        resolve({}, {}).keep_first = 3  # type: ignore[misc]


def test_the_description_names_each_setting_once_and_its_default_is_valid() -> None:
    told = describe()
    assert [variable for variable, _, _ in told] == [
        PREFIX + field.name.upper() for field in fields(Settings)
    ]
    assert all(meaning for _, _, meaning in told)
    defaults = {
        field.name: default for field, (_, default, _) in zip(fields(Settings), told, strict=True)
    }
    assert resolve(defaults, {}) == Settings()


def test_a_misspelt_variable_is_told_once_and_ignored(caplog):
    resolve({}, {"OVERLAPWATCH_LOGDIR": "x", "OVERLAPWATCH_LINE_EVERY": "3"})
    assert [r.getMessage() for r in caplog.records] == [
        "OVERLAPWATCH_LOGDIR is not a setting of overlapwatch: ignored"
    ]
