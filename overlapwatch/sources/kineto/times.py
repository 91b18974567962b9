"""Decimal text of microseconds -> integer nanoseconds, exactly.

In: the text of each time as the file has it. Out: int64 ns, and which of them are times at all. A
float64 would lose the nanoseconds of a time since 1970, so digits are added up as integers:

| text               | ns               |
|--------------------|------------------|
| 1661203462598738   | 1661203462598738000 |
| 4458676522690.655  | 4458676522690655 |
| "12.5"             | 12500            |
| 1e3                | 1000000          |
| null, "x", 1e300   | not a time       |

Digits beyond the nanosecond are rounded half up. A whole array is read at once: by numpy's own reader
where all texts are of one form, as a profiler writes them, else digit by digit. What is not plain digits
is read one by one by the plain twin, `ns_of`.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlapwatch.timeline.model import I64

LIMIT_NS = 2**61
"""No time or length is as large: a start, its base and a length still fit into 64 bits together."""

_DIGITS = 18  # so many always fit into 64 bits
_ZERO, _NINE, _DOT, _SPACE = ord("0"), ord("9"), ord("."), ord(" ")


def ns_of(text: bytes) -> int | None:
    """Return the ns of one text of µs; None when it is no number, or beyond `LIMIT_NS`."""
    plain = text.strip(b' \t\r\n"')
    if len(plain) > 64:
        return None
    try:
        value = Decimal(plain.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return None
    if not value.is_finite() or value.adjusted() > _DIGITS:
        return None
    ns = int((value * 1000).to_integral_value(ROUND_HALF_UP))
    return ns if abs(ns) < LIMIT_NS else None


def ns_array(given: Sequence[bytes | msgspec.Raw]) -> tuple[I64, NDArray[np.bool_]]:
    """Return the ns of each text, and whether it is a time; ns is 0 where it is none."""
    if not given:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    uniform = _uniform(given)
    if uniform is not None:
        return uniform, np.ones(len(given), np.bool_)
    texts = [bytes(text)[:65] for text in given]
    column = np.array(texts, np.bytes_)
    width = column.dtype.itemsize
    letters = column.view(np.uint8).reshape(len(texts), width)
    ns, plain = _plain(letters)
    known = plain.copy()
    for index in np.flatnonzero(~plain).tolist():
        value = ns_of(texts[index])
        if value is not None:
            ns[index], known[index] = value, True
    known &= np.abs(ns) < LIMIT_NS
    ns[~known] = 0
    return ns, known


def _uniform(texts: Sequence[bytes | msgspec.Raw]) -> I64 | None:
    """Return the ns of texts that are all whole µs, or all with three decimals; None where they are not.

    2 30 4          2000 30000 4000          2.500 30.001          2500 30001 (their digits are ns)
    """
    joined = b" ".join(texts) + b" "
    if joined.translate(None, b"0123456789. "):
        return None
    letters = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(letters == _SPACE)
    dots = np.flatnonzero(letters == _DOT)
    length = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or length.min() < 1 or length.max() > _DIGITS:
        return None
    scale = 1000
    if len(dots):
        if len(dots) != len(ends) or length.min() < 5 or (ends - dots != 4).any():
            return None
        joined, scale = joined.replace(b".", b""), 1
    values: I64 = np.fromstring(joined, np.int64, sep=" ")
    return values * scale if values.max() < LIMIT_NS // scale else None


def _plain(letters: NDArray[np.uint8]) -> tuple[I64, NDArray[np.bool_]]:
    """Return the ns of the rows that are digits, with or without a fraction of at most three."""
    rows, width = letters.shape
    value = np.zeros(rows, np.int64)
    digits = np.zeros(rows, np.int64)
    decimals = np.zeros(rows, np.int64)
    dots = np.zeros(rows, np.int64)
    other = np.zeros(rows, np.bool_)
    for place in range(width):
        letter = letters[:, place]
        digit = (letter >= _ZERO) & (letter <= _NINE)
        taken = digit & (digits < _DIGITS)
        value[taken] = value[taken] * 10 + (letter[taken].astype(np.int64) - _ZERO)
        digits += digit
        decimals += digit & (dots > 0)
        dot = letter == _DOT
        dots += dot
        other |= ~(digit | dot | (letter == 0))
    scale = 10 ** np.maximum(3 - decimals, 0)
    plain = ~other & (digits > 0) & (digits <= _DIGITS) & (dots <= 1) & (decimals <= 3)
    plain &= value < LIMIT_NS // scale
    return np.where(plain, value * scale, 0), np.asarray(plain, np.bool_)
