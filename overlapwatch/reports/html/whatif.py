"""What the what-if of the page starts from, as JSON.

In: recordings of one run, and which steps of it were asked for. Out: the measured blocks (`whatif.blocks`) as plain
values, integers in ns and bytes, or one sentence why the input has none; and the worked example of the definitions,
which needs no input. The page itself computes what becomes of them (`assets/engines.js`, held to the same integers by
a test). It computes nothing.
"""

from collections.abc import Sequence
from typing import Any

from overlapwatch.accounting.analyse import Analysis
from overlapwatch.errors import InputError
from overlapwatch.timeline.model import Recording
from overlapwatch.whatif.blocks import measured_blocks
from overlapwatch.whatif.ddp import DEFAULT_CAPS_MB, Layout
from overlapwatch.whatif.measured import MeasuredBlocks, MeasuredStep

_MS = 1_000_000
_OTHER_RULE = "the buckets are those of {}, which has another rule for them than DDP"
_EXAMPLES = (
    ("worked example: 2 ms blocks, 1 ms sends", 2, 1),
    ("worked example: 2 ms blocks, 4 ms sends", 2, 4),
)


def whatif_payload(recordings: Sequence[Recording], analyses: Sequence[Analysis]) -> dict[str, Any]:
    """Return what `mountWhatif` takes.

    Args:
        recordings: of one run, one a rank, the one to be told first.
        analyses: of the same ranks; their steps are the ones that were asked for.

    `run` is null, with one sentence in `because`, where the input cannot tell.
    """
    run, because = None, None
    try:
        blocks = measured_blocks(recordings, analyses[0].rows["step"].tolist())
        run = _run(blocks, recordings[0].timeline.origin.path)
        if analyses[0].configured and not run["layout"]:
            run["layout_because"] = _OTHER_RULE.format(analyses[0].configured.framework)
    except InputError as error:
        because = _plain(str(error), recordings[0].timeline.origin.path)
    return {
        "run": run,
        "because": because,
        "examples": [_example(name, *times) for name, *times in _EXAMPLES],
    }


def _run(blocks: MeasuredBlocks, path: str) -> dict[str, Any]:
    model, cost = blocks.model, blocks.model.cost
    return {
        "rank": blocks.rank,
        "ranks": blocks.ranks,
        "usable": blocks.usable,
        "representative": blocks.representative,
        "blocks": [
            blocks.before,
            *(f"to {name}" for name in blocks.buckets),
            "rest of the backward",
        ],
        "block_of": list(range(1, len(blocks.buckets) + 1)),
        "buckets": [
            {"name": name, "bytes": size}
            for name, size in zip(blocks.buckets, blocks.sizes, strict=True)
        ],
        "steps": [_step(step) for step in blocks.steps],
        "layout": _layout(blocks.layout, model.launch_delay_ns) if blocks.layout else None,
        "layout_because": _plain(blocks.layout_because, path) or None,
        "cost": cost.to_dict() if cost else None,
        "cost_because": model.because or None,
        "error_ns": model.error_ns,
        "caps_mb": list(DEFAULT_CAPS_MB),
        "not_known": [{"what": one.what, "because": one.because} for one in model.unknown],
    }


def _plain(because: str, path: str) -> str:
    """Return a reason without the path in front of it: the page names its inputs once."""
    return because.removeprefix(f"{path}: ")


def _step(step: MeasuredStep) -> dict[str, Any]:
    recorded = step.recorded
    return {
        "step": step.step,
        "still_ns": step.still_ns.tolist(),
        "compute_ns": step.compute_ns.tolist(),
        "segments": list(step.segments),
        "ready_ns": step.ready_ns.tolist(),
        "delay_ns": step.delay_ns.tolist(),
        "service_ns": step.service_ns.tolist(),
        "gradients_ns": None if step.gradients_ns is None else step.gradients_ns.tolist(),
        "recorded": {
            "step_ns": recorded.step_ns,
            "total_ns": recorded.total_ns,
            "tail_ns": recorded.tail_ns,
            "communication_ns": recorded.communication_ns,
            "hidden_ns": recorded.hidden_ns,
            "exposed_ns": recorded.exposed_ns,
            "other_exposed_ns": recorded.other_exposed_ns,
        },
    }


def _layout(layout: Layout, launch_delay_ns: int) -> dict[str, Any]:
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(layout.types))}
    return {
        "sizes": layout.sizes.tolist(),
        "types": [kinds[kind] for kind in layout.types],
        "launch_delay_ns": launch_delay_ns,
    }


def _example(name: str, compute_ms: int, communication_ms: int) -> dict[str, Any]:
    count = 3
    return {
        "name": name,
        "compute_ns": [compute_ms * _MS] * count,
        "communication_ns": [communication_ms * _MS] * count,
    }
