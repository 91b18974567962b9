"""How DDP would lay parameters out in buckets under another cap.

In: parameter sizes in the order in which DDP looks at them, and a cap. Out: which parameters share a bucket, in launch
order. The rule (PyTorch's reducer; checked against it in the tests):

* parameters of one type and device fill a bucket of their own;
* a bucket closes behind the parameter that makes it at least as large as its limit: parameters are never split, and a
  bucket may be much larger than the cap;
* each type's first bucket has the first limit, all others the last one. Where the user gave no cap the first limit is
  1 MiB, so that something is under way early; where he gave one, there is only that one;
* what is left at the end forms the last buckets (of several types, in an order that PyTorch leaves to a hash table).

With limits of 4 and 10 bytes:

| parameters      | buckets               |
|-----------------|-----------------------|
| 3, 3, 4, 4, 4, 1 | 3 3 | 4 4 4 | 1       |
"""

from collections.abc import Hashable, Sequence

MIB = 1 << 20
DEFAULT_CAP_MB = 25
DEFAULT_FIRST_BYTES = MIB


def limits(bucket_cap_mb: float | None) -> tuple[int, ...]:
    """Return the limits that DDP uses for `bucket_cap_mb` (MiB); None for its default."""
    if bucket_cap_mb is None:
        return (DEFAULT_FIRST_BYTES, DEFAULT_CAP_MB * MIB)
    return (int(bucket_cap_mb * MIB),)


def assign(
    sizes: Sequence[int], limits_bytes: Sequence[int], types: Sequence[Hashable]
) -> list[list[int]]:
    """Return the buckets, in launch order, as indices into `sizes`.

    Args:
        sizes: bytes of each parameter's gradient, in the order in which gradients become ready.
        limits_bytes: of a type's first bucket, its second, ...; the last one holds for all further.
        types: what must be equal within a bucket: dtype and device.
    """
    open_: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    closed_of: dict[Hashable, int] = {}
    buckets: list[list[int]] = []
    for index, (size, kind) in enumerate(zip(sizes, types, strict=True)):
        open_.setdefault(kind, []).append(index)
        filled[kind] = filled.get(kind, 0) + size
        limit = limits_bytes[min(closed_of.get(kind, 0), len(limits_bytes) - 1)]
        if filled[kind] >= limit:
            buckets.append(open_.pop(kind))
            filled[kind] = 0
            closed_of[kind] = closed_of.get(kind, 0) + 1
    return buckets + list(open_.values())
