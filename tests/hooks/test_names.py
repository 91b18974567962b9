"""Names become ids once, are made known once, and groups have a numbering of their own."""

import threading

import pytest

from overlapwatch.hooks import names as module
from overlapwatch.hooks.names import Names
from overlapwatch.vocabulary import Name, NameKind


def test_a_name_has_one_id_and_is_told_once() -> None:
    names = Names()
    first = names.intern(NameKind.PARAMETER, "w", (), 6, 24, "float32")
    second = names.intern(NameKind.BUCKET, "bucket 0", (first,), 6, 24, "float32")
    assert names.intern(NameKind.PARAMETER, "w", (), 6, 24, "float32") == first
    assert (first, second) == (1, 2)  # 0 is "none"
    assert names.take_new() == [
        Name(1, NameKind.PARAMETER, "w", (), 6, 24, "float32"),
        Name(2, NameKind.BUCKET, "bucket 0", (1,), 6, 24, "float32"),
    ]
    assert names.intern(NameKind.PARAMETER, "w", (), 6, 24, "float32") == first
    assert names.take_new() == []


@pytest.mark.parametrize(
    "other",
    [
        (NameKind.MODULE, "bucket 0", (1, 2), 6, 24, "float32"),
        (NameKind.BUCKET, "bucket 1", (1, 2), 6, 24, "float32"),
        (NameKind.BUCKET, "bucket 0", (2, 1), 6, 24, "float32"),
        (NameKind.BUCKET, "bucket 0", (1, 2), 7, 24, "float32"),
        (NameKind.BUCKET, "bucket 0", (1, 2), 6, 12, "float32"),
        (NameKind.BUCKET, "bucket 0", (1, 2), 6, 24, "float16"),
    ],
    ids=["kind", "text", "members", "elements", "bytes", "dtype"],
)
def test_whatever_differs_makes_another_name(other: tuple) -> None:
    names = Names()
    one = names.intern(NameKind.BUCKET, "bucket 0", (1, 2), 6, 24, "float32")
    assert names.intern(*other) != one


def test_groups_are_numbered_apart_and_those_that_do_not_fit_have_no_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    names = Names()
    assert names.intern(NameKind.MODULE, "net") == 1
    assert [names.intern(NameKind.GROUP, text, (0, 1)) for text in "abcb"] == [1, 2, 0, 2]
    assert [name.text for name in names.take_new()] == ["net", "a", "b"]
    assert names.intern(NameKind.MODULE, "other") == 2


def test_threads_agree_on_ids() -> None:
    names = Names()
    found: list[list[int]] = []

    def work() -> None:
        found.append([names.intern(NameKind.PARAMETER, str(n)) for n in range(500)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == found[0] for ids in found)
    assert sorted(name.id for name in names.take_new()) == list(range(1, 501))
