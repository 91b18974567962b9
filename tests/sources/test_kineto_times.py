"""Text of µs -> ns: the array reader against its plain twin."""

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapwatch.sources.kineto.times import LIMIT_NS, ns_array, ns_of

NUMBERS = st.one_of(
    st.integers(-(10**22), 10**22).map(str),
    st.decimals(allow_nan=True, allow_infinity=True, places=3, min_value=None).map(str),
    st.tuples(st.integers(0, 10**16), st.integers(0, 10**6)).map(lambda p: f"{p[0]}.{p[1]:03}"),
    st.floats().map(repr),
    st.text(max_size=8),
    st.integers(0, 10**16).map(lambda n: f'"{n}"'),
)


@given(st.lists(NUMBERS, max_size=20))
def test_the_array_reader_agrees_with_its_plain_twin(texts):
    rows = [text.encode("utf-8", "replace").replace(b"\0", b"?") for text in texts]
    ns, known = ns_array(rows)
    assert [int(n) if k else None for n, k in zip(ns, known, strict=True)] == [
        ns_of(row) for row in rows
    ]


WHOLE = st.integers(0, 10**17).map(str)
DECIMAL = st.integers(0, 10**18).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}")


@given(
    st.one_of(st.lists(WHOLE, min_size=1), st.lists(DECIMAL, min_size=1)),
    st.sampled_from(["", "7", "7.25", ".655", "1 2", "null", "12.345.678"]),
    st.booleans(),
)
def test_texts_of_one_form_read_like_each_alone(texts, odd, with_odd):
    rows = [text.encode() for text in [*texts, odd][: len(texts) + with_odd]]
    for given_rows in (rows, [msgspec.Raw(row) for row in rows]):
        ns, known = ns_array(given_rows)
        assert [int(n) if k else None for n, k in zip(ns, known, strict=True)] == [
            ns_of(row) for row in rows
        ]


@given(st.integers(0, 2**60))
def test_every_ns_survives_its_text(ns):
    text = f"{ns // 1000}.{ns % 1000:03}"
    assert ns_of(text.encode()) == ns
    assert ns_array([text.encode()])[0].tolist() == [ns]
    assert Decimal(text) * 1000 == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1661203462598738", 1661203462598738000),
        (b"4458676522690.655", 4458676522690655),
        (b"0", 0),
        (b"-1.5", -1500),
        (b"1e3", 1_000_000),
        (b'"12.5"', 12500),
        (b"0.0005", 1),
        (b"null", None),
        (b"", None),
        (b"inf", None),
        (b"1e300", None),
        (b"1e99999999999", None),
        (b"1e-99999999999", 0),
        (b"-0.0", 0),
        (b"1" * 70, None),
        (b"[1]", None),
    ],
)
def test_texts(text, ns):
    assert ns_of(text) == ns
    values, known = ns_array([text])
    assert (int(values[0]) if known[0] else None) == ns


def test_the_limit_leaves_room_for_sums():
    assert 3 * LIMIT_NS < 2**63
