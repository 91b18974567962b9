"""Merges neighbouring bucket groups of one model chunk in a running job, and takes them apart again.

In: a chunk in Megatron's DistributedDataParallel, between two steps, and how many groups to make one. Out: the same
chunk with other groups. Buckets stay: their memory, their padding and the optimizer's shards of them. A group is what
is sent in one go, so merging sends less often; below the buckets that Megatron has built nothing can be split.

    built     | 0 | 1 | 2 | 3 | 4 |
    2 as one  | 0   1 | 2   3 | 4 |     a last one may be left over
    3 as one  | 0   1   2 | 3   4 |

What a group has learnt and where it is in its step goes from the groups in force to the new ones, so nothing is learnt
again and nothing is sent twice.
"""

from collections.abc import Iterable
from typing import Any

LISTS = ("bucket_groups", "expert_parallel_bucket_groups")

_KNOWN = frozenset(
    {
        "buckets",
        "cached_grad_buffer_shard_list",
        "cached_param_buffer_shard_list",
        "communication_stream",
        "data_parallel_group",
        "ddp_config",
        "golden_per_param_grad_ready_counts",
        "grad_reduce_finished",  # from 0.18 on; a reset clears it
        "grad_reduce_handle",
        "inter_distributed_optimizer_instance_group",
        "intra_distributed_optimizer_instance_group",
        "intra_distributed_optimizer_instance_rank",
        "intra_distributed_optimizer_instance_size",
        "is_first_batch",
        "is_last_microbatch",
        "next_param_gather_bucket_group",
        "param_gather_dispatched",
        "param_gather_handle",
        "param_to_bucket",
        "params",
        "params_with_grad",
        "per_param_grad_ready_counts",
        "previous_grad_reduce_bucket_group",  # from 0.18 on; only with what is not merged anyway
    }
)
"""What a bucket group consists of, from 0.10 on. What a later release adds may have to be carried over too."""


class Grouping:
    """The bucket groups of one chunk.

    Attributes:
        together: how many of the groups that Megatron built are one now.
    """

    def __init__(self, ddp: Any) -> None:
        self._ddp = ddp
        self._built = {name: list(getattr(ddp, name)) for name in LISTS}
        self.together = 1

    @property
    def most(self) -> int:
        """How many groups the longest list has as it was built."""
        return max(len(groups) for groups in self._built.values())

    def unknown_parts(self) -> list[str]:
        """Return attributes of the groups that are not known here: they could not be carried over."""
        return sorted(
            {
                name
                for groups in self._built.values()
                for group in groups
                for name, value in vars(group).items()
                if name not in _KNOWN and not callable(value)  # methods that a watch stands before
            }
        )

    def set(self, together: int) -> None:
        """Make so many neighbouring groups one.

        Raises:
            RuntimeError: something of a group is in flight.
        """
        if together == self.together:
            return
        now = [group for name in LISTS for group in getattr(self._ddp, name)]
        if any(
            handle is not None
            for group in now
            for handle in (group.grad_reduce_handle, group.param_gather_handle)
        ):
            raise RuntimeError(
                "a collective of a bucket group is still in flight between two steps"
            )
        lists = {
            name: [_merged(part) for part in _neighbours(groups, together)]
            for name, groups in self._built.items()
        }
        for groups in lists.values():
            for group in groups:
                _carry_over([one for one in now if not one.params.isdisjoint(group.params)], group)
        for name, groups in lists.items():
            if any(one.next_param_gather_bucket_group is not None for one in self._built[name]):
                _link(groups)
            getattr(self._ddp, name)[:] = groups  # in place: others may hold the list
            for group in groups:
                for parameter in group.params:
                    self._ddp.param_to_bucket_group[parameter] = group
        self.together = together


def _neighbours(groups: list[Any], together: int) -> Iterable[list[Any]]:
    """Yield runs of up to so many groups whose buffers are of the same types and on the same ranks."""
    run: list[Any] = []
    for group in groups:
        if run and (len(run) == together or _kind(run[-1]) != _kind(group)):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _ranks(group: Any) -> Any:
    """Return the process group on which it is sent."""
    if hasattr(group, "intra_distributed_optimizer_instance_group"):
        return group.intra_distributed_optimizer_instance_group
    return group.data_parallel_group


def _kind(group: Any) -> tuple[Any, ...]:
    types = {
        (bucket.grad_data.dtype, None if bucket.param_data is None else bucket.param_data.dtype)
        for bucket in group.buckets
    }
    return id(_ranks(group)), types


def _merged(groups: list[Any]) -> Any:
    """Return one group with the buckets of several; that one itself of one."""
    first = groups[0]
    if len(groups) == 1:
        return first
    buckets = [bucket for group in groups for bucket in group.buckets]
    ranks = _ranks(first)
    return type(first)(buckets, first.ddp_config, ranks, ranks.size())


def _carry_over(parts: list[Any], group: Any) -> None:
    """Bring a group to where those stand whose parameters it takes over; one of them may be itself."""
    last = all(part.is_last_microbatch for part in parts)
    gathered = all(part.param_gather_dispatched for part in parts)
    learning = any(getattr(part, "is_first_batch", False) for part in parts)
    learnt = {
        parameter: count
        for part in parts
        for parameter, count in getattr(part, "golden_per_param_grad_ready_counts", {}).items()
        if parameter in group.params
    }
    group.reset()  # of what the last step has counted
    if hasattr(group, "is_first_batch"):
        group.is_first_batch = learning
        group.golden_per_param_grad_ready_counts = {} if learning else learnt
    group.is_last_microbatch, group.param_gather_dispatched = last, gathered


def _link(groups: list[Any]) -> None:
    """Say which group is gathered after which: the one before it in the list, since forward runs the other way."""
    for before, group in zip([None, *groups[:-1]], groups, strict=True):
        group.next_param_gather_bucket_group = before
