"""Settings of Megatron-Core that can be changed between two steps.

In: watched model chunks. Out: knobs for the overlap of gradients, the overlap of parameters, and for how many bucket
groups are sent as one. Each is there for every chunk that Megatron wrapped; where one cannot be changed in this job, it
says so when it is asked for a value. None of them sends a collective of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from overlapwatch.errors import ConfigurationError
from overlapwatch.hooks.knobs import Knob
from overlapwatch.hooks.megatron.chunk import WatchedChunk
from overlapwatch.hooks.megatron.detect import Wrapper
from overlapwatch.hooks.megatron.overlap import GradientOverlap, ParameterOverlap
from overlapwatch.hooks.megatron.regroup import Grouping

_SAME_BITS = "results keep their bits: only when it is sent changes"


class Switches(NamedTuple):
    """What can be changed in one chunk; outlives a sweep, since what a sweep left in force stays."""

    chunk: WatchedChunk
    gradients: GradientOverlap
    parameters: ParameterOverlap
    grouping: Grouping


def switches_of(chunk: WatchedChunk, failed: Callable[[Exception], None]) -> Switches:
    """Return those of a chunk in Megatron's DistributedDataParallel, as they stand.

    Args:
        chunk: the watched chunk.
        failed: called with a fault that happens while the training loop runs.
    """
    ddp = chunk.chunk.module
    return Switches(chunk, GradientOverlap(ddp), ParameterOverlap(ddp, failed), Grouping(ddp))


def is_tunable(chunk: WatchedChunk) -> bool:
    """Whether it is in the wrapper, of a release, whose settings are known here."""
    ddp = chunk.chunk.module
    return chunk.chunk.wrapper is Wrapper.DDP and all(hasattr(ddp, name) for name in _NEEDED)


_NEEDED = (
    "ddp_config",
    "bucket_groups",
    "expert_parallel_bucket_groups",
    "param_to_bucket_group",
    "remove_forward_pre_hook_handles",
    "enable_forward_pre_hook",
    "disable_forward_pre_hook",
    "finish_grad_sync",
)


def megatron_knobs(chunks: Sequence[WatchedChunk], switches: Sequence[Switches]) -> dict[str, Knob]:
    """Return the knobs of these chunks, by name.

    Args:
        chunks: all that are watched.
        switches: of the tunable ones among them.
    """
    never = _never(chunks)
    knobs: tuple[Knob, ...] = (
        OverlapKnob(
            "overlap_grad_reduce",
            [one.gradients for one in switches],
            never,
            "Megatron then makes one bucket of all gradients, and its loop does not keep those of earlier "
            "microbatches from being sent",
        ),
        OverlapKnob(
            "overlap_param_gather",
            [one.parameters for one in switches],
            never or _no_parameters(switches),
            "Megatron then puts no forward pre-hooks in, and its loop does not gather parameters ahead of a "
            "checkpoint",
        ),
        MergeKnob(switches, never or _no_merging(switches)),
    )
    return {knob.name: knob for knob in knobs}


class _Switch(Protocol):
    on: bool
    built_on: bool

    def switch(self, on: bool) -> None: ...  # noqa: FBT001 - it is what is switched


class OverlapKnob:
    """`overlap_grad_reduce` or `overlap_param_gather`: on or off.

    Args:
        name: Megatron's.
        switches: one a chunk.
        refusal: why it cannot be changed in this job, "" when it can.
        without: what a job that was started without it lacks.
    """

    warm_up = 2

    def __init__(
        self,
        name: str,
        switches: Sequence[_Switch],
        refusal: str,
        without: str,
    ) -> None:
        self.name = name
        self.results = f"{name}: {_SAME_BITS}"
        self._switches = switches
        self._refusal, self._without = refusal, without
        self._before = [one.on for one in switches]

    def check(self, value: Any) -> None:
        """True or False; True only where the job was started with it."""
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self.name}={value!r}: it is True or False")
        _refuse(self.name, self._refusal)
        if value and not all(one.built_on for one in self._switches):
            raise ConfigurationError(
                f"{self.name} cannot be switched on in a job that was started without it: {self._without}; start with "
                "it on, and a sweep can switch it off"
            )

    def title(self, value: Any) -> str:
        """Write the choice."""
        return "on" if value else "off"

    def apply(self, value: Any) -> None:
        """Switch all chunks."""
        self._turn([value] * len(self._switches))

    def restore(self) -> None:
        """Switch each chunk back."""
        self._turn(self._before)

    def _turn(self, wanted: Sequence[bool]) -> None:
        old = [one.on for one in self._switches]
        try:
            for one, on in zip(self._switches, wanted, strict=True):
                one.switch(on)
        except Exception:
            for one, on in zip(self._switches, old, strict=True):
                one.switch(on)
            raise


class MergeKnob:
    """How many neighbouring bucket groups are sent as one; 1 for the groups that Megatron has built."""

    name = "merge_bucket_groups"
    warm_up = 2
    results = (
        "merge_bucket_groups: a change keeps the mathematics; with more than two ranks the order in which values are "
        "added, and so the last bits, may differ"
    )

    def __init__(self, switches: Sequence[Switches], refusal: str) -> None:
        self._switches = switches
        self._refusal = refusal
        self._before = [one.grouping.together for one in switches]

    def check(self, value: Any) -> None:
        """A positive number of groups."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(
                f"{self.name}={value!r}: it is how many neighbouring bucket groups are sent as one, 1 or more"
            )
        _refuse(self.name, self._refusal)

    def title(self, value: Any) -> str:
        """Write a number of groups."""
        return "as built" if value == 1 else f"{value} as one"

    def apply(self, value: Any) -> None:
        """Merge the groups of all chunks."""
        self._turn([value] * len(self._switches))

    def restore(self) -> None:
        """Give each chunk its groups back."""
        self._turn(self._before)

    def _turn(self, wanted: Sequence[int]) -> None:
        old = [one.grouping.together for one in self._switches]
        try:
            for one, together in zip(self._switches, wanted, strict=True):
                one.grouping.set(together)
        except Exception:
            for one, together in zip(self._switches, old, strict=True):
                one.grouping.set(together)
            raise
        finally:
            for one in self._switches:
                one.chunk.follow_groups()


# -- what cannot be changed --------------------------------------------------------------------


def _refuse(name: str, because: str) -> None:
    if because:
        raise ConfigurationError(f"{name} cannot be changed in this running job: {because}")


def _option(switches: Sequence[Switches], name: str) -> Any:
    """Return an option of the wrappers or of the models, of the first chunk that has it set."""
    for one in switches:
        ddp = one.chunk.chunk.module
        for source in (ddp.ddp_config, getattr(ddp, "config", None), ddp):
            if value := getattr(source, name, None):
                return value
    return None


def _never(chunks: Sequence[WatchedChunk]) -> str:
    """Return why nothing at all can be changed, or ""."""
    for chunk in chunks:
        if chunk.chunk.wrapper is not Wrapper.DDP:
            return (
                f"the model is wrapped by {chunk.chunk.wrapper.value}, which decides when it is built what is sent "
                "when"
            )
        if not is_tunable(chunk):
            return "this release of Megatron keeps its bucket groups elsewhere (0.10 or newer is needed)"
    graphs = {str(getattr(c.chunk.module.config, "cuda_graph_impl", None)) for c in chunks} | {
        str(getattr(c.chunk.module.config, "cuda_graph_scope", None)) for c in chunks
    }
    if any("full_iteration" in text for text in graphs):
        return "a step is one CUDA graph, which is replayed as it was captured"
    return ""


def _no_parameters(switches: Sequence[Switches]) -> str:
    """Return why the overlap of parameters cannot be changed, or ""."""
    if not _option(switches, "use_distributed_optimizer"):
        return "parameters are gathered by the distributed optimizer only, which is not in use"
    if _option(switches, "overlap_param_gather_with_optimizer_step"):
        return "overlap_param_gather_with_optimizer_step has split the optimizer in two for it"
    if _option(switches, "reuse_grad_buf_for_mxfp8_param_ag"):
        return (
            "parameters share their buffers with gradients (reuse_grad_buf_for_mxfp8_param_ag), and when they are "
            "copied there depends on it"
        )
    graphs = _option(switches, "cuda_graph_impl")
    if graphs not in {None, "none"} or any(
        _option(switches, name) for name in ("enable_cuda_graph", "external_cuda_graph")
    ):
        return "CUDA graphs hold the forward pre-hooks as they were when they were captured"
    return ""


def _no_merging(switches: Sequence[Switches]) -> str:
    """Return why bucket groups cannot be merged, or ""."""
    if (_option(switches, "num_distributed_optimizer_instances") or 1) > 1:
        return "several optimizer instances give each bucket group a stream of its own"
    if _option(switches, "reduce_scatter_with_fp32_accumulation"):
        return "reduce_scatter_with_fp32_accumulation takes one bucket at a time"
    if _option(switches, "overlap_param_gather") and not _option(
        switches, "use_distributed_optimizer"
    ):
        return "the layer-wise optimizer gathers by the bucket groups as they were built"
    unknown = sorted({name for one in switches for name in one.grouping.unknown_parts()})
    if unknown:
        return f"bucket groups of this release of Megatron have parts that are not known: {', '.join(unknown)}"
    pipeline = _option(switches, "pipeline_model_parallel_size") or 1
    if pipeline == 1 and all(one.grouping.most == 1 for one in switches):
        return "there is one bucket group, so there is nothing to merge; a smaller bucket_size makes more"
    return ""
