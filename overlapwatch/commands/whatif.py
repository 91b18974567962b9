"""`overlapwatch whatif RUN`: what other bucket caps (DDP) or prefetch depths (FSDP2) would have done.

In: a run of a DDP or FSDP2 job, or, for two engines, times of blocks (`--compute-ms`, `--communication-ms`). Out: the
forecast on stdout, as text or JSON. It computes nothing.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapwatch.commands.options import add_json, add_width, parse_numbers, parse_width
from overlapwatch.commands.printing import show, write_json
from overlapwatch.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from overlapwatch.timeline.model import Recording, Timeline
    from overlapwatch.whatif.cost import Cost

SCHEMA = 1


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "whatif",
        help="what other bucket caps (DDP) or prefetch depths (FSDP2) would have done to a recorded run",
        description="Simulate a recorded run with other settings. DDP, bucket caps: gradients become ready as they "
        "did, buckets are laid out as DDP would, and collectives queue at a fitted cost. FSDP2, prefetch depths and "
        "reshard_after_forward: compute takes what it took, all-gathers are issued where the setting has them, and "
        "memory is told beside time. Or, without a run, place blocks of compute and of communication on two engines.",
    )
    parser.add_argument("input", metavar="RUN", nargs="?", help="a run directory, or a log")
    parser.add_argument(
        "--bucket-cap-mb",
        metavar="N[,M]",
        help="DDP: caps to try, MiB; `default` is DDP's own (default: 1 to 200)",
    )
    for phase in ("forward", "backward"):
        parser.add_argument(
            f"--{phase}-prefetch",
            metavar="N[,M]",
            help=f"FSDP2: how many modules ahead to gather in {phase}; 0 is PyTorch's default (default: 0 to 3)",
        )
    parser.add_argument(
        "--reshard-after-forward",
        metavar="true,false",
        help="FSDP2: whether modules give their parameters back after forward (default: both)",
    )
    parser.add_argument("--rank", metavar="N", help="tell this rank (default: the first)")
    cost = parser.add_argument_group("cost of a collective (default: fitted to the run)")
    cost.add_argument("--latency-us", metavar="N", help="microseconds of each; with --gb-per-s")
    cost.add_argument("--gb-per-s", metavar="N", help="10^9 bytes a second")
    blocks = parser.add_argument_group("two engines, without a run")
    blocks.add_argument("--compute-ms", metavar="N,M,...", help="compute time of each block")
    blocks.add_argument(
        "--communication-ms", metavar="N,M,...", help="communication time of each block"
    )
    add_json(parser)
    add_width(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the forecast; return 0.

    Raises:
        ConfigurationError, InputError: one sentence for the user.
    """
    width = parse_width(arguments.width)
    blocks = arguments.compute_ms is not None or arguments.communication_ms is not None
    if blocks == (arguments.input is not None):
        raise ConfigurationError(
            "name a run, or give both --compute-ms and --communication-ms"
            + (", not both" if blocks else "")
        )
    if blocks:
        _engines(arguments, width)
    else:
        _run_of_a_job(arguments, width)
    return 0


def _engines(arguments: argparse.Namespace, width: int | None) -> None:
    if arguments.compute_ms is None or arguments.communication_ms is None:
        raise ConfigurationError("two engines need both --compute-ms and --communication-ms")
    compute = _times(arguments.compute_ms, "--compute-ms")
    communication = _times(arguments.communication_ms, "--communication-ms")
    from overlapwatch.reports.layout import DEFAULT_WIDTH  # noqa: PLC0415 - slow to import
    from overlapwatch.reports.whatif import engines  # noqa: PLC0415
    from overlapwatch.whatif.engines import two_engines  # noqa: PLC0415

    result = two_engines(compute, communication)
    if arguments.json:
        write_json({"schema": SCHEMA, "two_engines": result.to_dict()})
    else:
        show(engines(result, width or DEFAULT_WIDTH), width)


def _run_of_a_job(arguments: argparse.Namespace, width: int | None) -> None:
    caps = _caps(arguments.bucket_cap_mb)
    asked = {
        "forward_prefetch": _depths(arguments.forward_prefetch, "--forward-prefetch"),
        "backward_prefetch": _depths(arguments.backward_prefetch, "--backward-prefetch"),
        "reshard_after_forward": _truths(arguments.reshard_after_forward),
    }
    cost = _cost(arguments.latency_us, arguments.gb_per_s)
    path = Path(arguments.input)
    recordings = _read(path, arguments.rank)
    if _gathers_modules(recordings[0].timeline):
        if caps is not None:
            raise ConfigurationError(
                f"{path}: --bucket-cap-mb is a setting of DDP, and this run is of FSDP2, which has no buckets"
            )
        _fsdp2(path, recordings, asked, cost, arguments.json, width)
        return
    if any(value is not None for value in asked.values()):
        flag = next(name for name, value in asked.items() if value is not None).replace("_", "-")
        raise ConfigurationError(
            f"{path}: --{flag} is a setting of FSDP2, and no module of this run gathered its parameters"
        )
    from overlapwatch.reports.whatif import ddp  # noqa: PLC0415 - slow to import
    from overlapwatch.whatif.ddp import DEFAULT_CAPS_MB, ddp_forecast  # noqa: PLC0415

    result = ddp_forecast(recordings, caps or DEFAULT_CAPS_MB, cost)
    if arguments.json:
        write_json({"schema": SCHEMA, "input": str(path), "ddp": result.to_dict()})
    else:
        show(ddp(result), width)


def _read(path: Path, rank: str | None) -> "list[Recording]":
    """Return the recordings of a run, the one of the told rank first."""
    ranks = parse_numbers(rank, "rank")
    if ranks is not None and len(ranks) != 1:
        raise ConfigurationError(f"--rank {rank}: one rank is told at a time")
    from overlapwatch.commands.progress import LateProgress  # noqa: PLC0415 - slow to import
    from overlapwatch.sources import open_trace  # noqa: PLC0415

    with LateProgress(f"reading {path}", sys.stderr) as progress:
        recordings = list(open_trace(path, progress=progress))
    if ranks is not None:
        told = [one for one in recordings if one.timeline.origin.rank in ranks]
        if not told:
            raise InputError(f"{path}: no rank {ranks[0]} in it")
        recordings = [*told, *(one for one in recordings if one is not told[0])]
    return recordings


def _gathers_modules(tl: "Timeline") -> bool:
    from overlapwatch.accounting.units.modules import owned_by_modules  # noqa: PLC0415 - slow to import

    return bool(owned_by_modules(tl.communication, tl.names).any())


def _fsdp2(
    path: Path,
    recordings: "list[Recording]",
    asked: dict[str, Any],
    cost: "Cost | None",
    as_json: bool,  # noqa: FBT001 - as it was typed
    width: int | None,
) -> None:
    from overlapwatch.reports.whatif_fsdp2 import fsdp2  # noqa: PLC0415 - slow to import
    from overlapwatch.whatif.fsdp2 import fsdp2_forecast  # noqa: PLC0415

    result = fsdp2_forecast(recordings, **asked, cost=cost)
    if as_json:
        write_json({"schema": SCHEMA, "input": str(path), "fsdp2": result.to_dict()})
    else:
        show(fsdp2(result), width)


def _numbers(text: str, flag: str, what: str) -> list[float]:
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ConfigurationError(f"{flag} {text}: {part.strip()!r} is not {what}")
        numbers.append(number)
    return numbers


def _times(text: str, flag: str) -> list[int]:
    return [round(ms * 1_000_000) for ms in _numbers(text, flag, "a time in ms")]


def _caps(text: str | None) -> Sequence[float | None] | None:
    if text is None:
        return None
    caps: list[float | None] = []
    for part in text.split(","):
        if part.strip() == "default":
            caps.append(None)
            continue
        (cap,) = _numbers(part, "--bucket-cap-mb", "a number of MiB")
        if cap <= 0:
            raise ConfigurationError(f"--bucket-cap-mb {text}: {part.strip()} is not positive")
        caps.append(cap)
    return caps


def _depths(text: str | None, flag: str) -> list[int] | None:
    if text is None:
        return None
    depths = []
    for part in text.split(","):
        if not part.strip().isdecimal() or len(part.strip()) > 9:
            raise ConfigurationError(
                f"{flag} {text}: {part.strip()!r} is not a number of modules (0, 1, 2, ...)"
            )
        depths.append(int(part))
    return depths


def _truths(text: str | None) -> list[bool] | None:
    if text is None:
        return None
    known = {"true": True, "false": False}
    for part in text.split(","):
        if part.strip().lower() not in known:
            raise ConfigurationError(
                f"--reshard-after-forward {text}: {part.strip()!r} is not true or false"
            )
    return [known[part.strip().lower()] for part in text.split(",")]


def _cost(latency: str | None, rate: str | None) -> "Cost | None":
    if latency is None and rate is None:
        return None
    if latency is None or rate is None:
        raise ConfigurationError("a cost needs both --latency-us and --gb-per-s")
    (us,) = _numbers(latency, "--latency-us", "a time in µs")
    (gb,) = _numbers(rate, "--gb-per-s", "a rate")
    if us < 0 or gb <= 0:
        raise ConfigurationError("--latency-us cannot be negative, --gb-per-s must be positive")
    from overlapwatch.whatif.cost import Cost  # noqa: PLC0415 - slow to import

    return Cost(latency_ns=round(us * 1000), ns_per_byte=1 / gb)
