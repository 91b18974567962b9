"""How DDP laid its parameters out in buckets, read from what DDP says of itself.

In: a DistributedDataParallel module. Out: the buckets in the reducer's order, with their parameters by name. Nothing is
allocated or changed. DDP lays buckets out twice: at construction, and, once the gradients' order is known, before the
second forward (never with `find_unused_parameters`; one iteration later with `static_graph`). Where the composition of
the first layout cannot be told from its sizes, the bucket has no members.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from overlapwatch.hooks.names import Names
from overlapwatch.vocabulary import NameKind

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def plain_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers put in."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


class Stage(Enum):
    """How far DDP has come in laying out its buckets."""

    FIRST = "first"  # the layout of the constructor, which will be replaced
    UNTOLD = "untold"  # replaced just now: DDP tells the new layout one iteration later
    FINAL = "final"  # the layout that the job will keep


@dataclass(frozen=True, slots=True)
class Bucket:
    """One gradient bucket.

    Args:
        id: its BUCKET Name.
        elements: gradient elements in it; 0 when only its size in bytes is known.
        size: bytes.
        members: PARAMETER ids, in the bucket's order; empty when not known.
    """

    id: int
    elements: int
    size: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of one DDP module, in the order in which they are launched."""

    buckets: tuple[Bucket, ...]
    stage: Stage


def parameters_of(ddp: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """Return (name, parameter) in the order in which the reducer indexes them."""
    names = {id(p): plain_name(n) for n, p in ddp.module.named_parameters()}
    return [(names.get(id(p), "?"), p) for p in ddp._module_parameters if p.requires_grad]  # noqa: SLF001


def read_layout(
    ddp: Any, label: str, ids: tuple[int, ...], parameters: list[torch.nn.Parameter], names: Names
) -> Layout:
    """Read the present layout.

    Args:
        ddp: the DDP module.
        label: what to call it in bucket names ("" when it is the only one).
        ids: PARAMETER ids, parallel to `parameters`.
        parameters: in the reducer's order.
        names: where bucket names are made known.
    """
    said = ddp._get_ddp_logging_data()  # noqa: SLF001 - the one place where DDP tells its layout
    rebuilt = bool(getattr(ddp, "_has_rebuilt_buckets", False))
    if rebuilt and "rebuilt_per_bucket_param_indices" not in said:
        return Layout((), Stage.UNTOLD)
    sizes = _integers(said["rebuilt_bucket_sizes" if rebuilt else "bucket_sizes"])
    if rebuilt:
        groups = [
            _integers(part, " ") for part in said["rebuilt_per_bucket_param_indices"].split(",")
        ]
    else:
        groups = _reverse_order_groups(parameters, sizes)
    buckets = []
    for index, size in enumerate(sizes):
        members = groups[index] if index < len(groups) else []
        chosen = [parameters[i] for i in members if i < len(parameters)]
        elements = sum(p.numel() for p in chosen)
        dtype = str(chosen[0].dtype).removeprefix("torch.") if chosen else ""
        text = f"{label}bucket {index}" if rebuilt or len(sizes) > 1 else f"{label}whole model"
        member_ids = tuple(ids[i] for i in members if i < len(ids))
        buckets.append(
            Bucket(
                names.intern(NameKind.BUCKET, text, member_ids, elements, size, dtype),
                elements,
                size,
                member_ids,
            )
        )
    return Layout(
        tuple(buckets), Stage.FINAL if rebuilt or ddp.find_unused_parameters else Stage.FIRST
    )


def _integers(text: str, separator: str = ",") -> list[int]:
    return [int(part) for part in text.split(separator) if part.strip()]


def _reverse_order_groups(
    parameters: list[torch.nn.Parameter], sizes: list[int]
) -> list[list[int]]:
    """Compose the first layout: parameters in reverse order, cut where the sizes say. [] where that does not fit.

    | parameters (bytes) | sizes   | groups       |
    |--------------------|---------|--------------|
    | 4 4 8 8            | 8 16    | [3] [2 1 0]  |
    | 4 4 8 8            | 12 12   | [] (no fit)  |
    """
    groups: list[list[int]] = []
    order = iter(range(len(parameters) - 1, -1, -1))
    for size in sizes:
        group: list[int] = []
        left = size
        while left > 0:
            index = next(order, None)
            if index is None:
                return []
            group.append(index)
            left -= parameters[index].numel() * parameters[index].element_size()
        if left:
            return []
        groups.append(group)
    return groups if next(order, None) is None else []
