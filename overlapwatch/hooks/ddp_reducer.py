"""Gives a DDP module a new reducer in place: the module, its parameters, gradients and optimizer state stay.

In: a DDP module between two steps. Out: the same module with a reducer as its constructor would make it, without a
communication hook. DDP has no public way to do so; FSDP and others never need it. Every rank must do it before the same
forward, or their buckets no longer match.
"""

import dataclasses
from typing import Any

import torch.distributed as dist

MIB = 1 << 20
DEFAULT_CAP_MB = 25


def replace_reducer(ddp: Any) -> None:
    """Make the reducer anew; DDP lays its buckets out as in its first steps again."""
    ddp.reducer._remove_autograd_hooks()  # noqa: SLF001
    parameters, sparse = ddp._build_params_for_reducer()  # noqa: SLF001
    names = ddp._build_debug_param_to_name_mapping(parameters)  # noqa: SLF001
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)  # noqa: SLF001
    if ddp.static_graph:  # as DDP's own __setstate__ does it; its method would only warn
        ddp.reducer._set_static_graph()  # noqa: SLF001
        ddp.logger._set_static_graph()  # noqa: SLF001
        ddp._static_graph_delay_allreduce_enqueued = False  # noqa: SLF001
    ddp._has_rebuilt_buckets = False  # noqa: SLF001


@dataclasses.dataclass(frozen=True, slots=True)
class BucketCap:
    """What a DDP module keeps of its bucket caps, to be put back as it was.

    Args:
        fields: attribute of the module → value.
    """

    fields: dict[str, Any]


_FIELDS = (
    "_bucket_config",
    "bucket_bytes_cap",
    "bucket_bytes_cap_default",
    "bucket_bytes_cap_list",
)


def read_cap(ddp: Any) -> BucketCap:
    """Return the caps as they are; not every PyTorch has all the attributes."""
    return BucketCap({name: getattr(ddp, name) for name in _FIELDS if hasattr(ddp, name)})


def write_cap(ddp: Any, cap: BucketCap) -> None:
    """Put caps back that `read_cap` read. The next reducer has them."""
    for name, value in cap.fields.items():
        setattr(ddp, name, value)


def set_cap(ddp: Any, cap_mb: float | None) -> None:
    """Set `bucket_cap_mb` (MiB) as the constructor would; None for DDP's default. The next reducer has it."""
    default = cap_mb is None
    limit = int((DEFAULT_CAP_MB if cap_mb is None else cap_mb) * MIB)
    ddp.bucket_bytes_cap = limit
    ddp.bucket_bytes_cap_default = default
    if hasattr(ddp, "bucket_bytes_cap_list"):
        ddp.bucket_bytes_cap_list = []
    if hasattr(ddp, "_bucket_config"):
        first = dist._DEFAULT_FIRST_BUCKET_BYTES if default else limit  # noqa: SLF001
        ddp._bucket_config = dataclasses.replace(  # noqa: SLF001
            ddp._bucket_config,  # noqa: SLF001
            bucket_bytes_cap=limit,
            per_bucket_bytes_caps=(),
            first_bucket_bytes_cap=first,
        )
