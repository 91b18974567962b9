"""`overlapwatch whatif RUN`: what other bucket caps would have done; `--compute-ms`, `--communication-ms`: two engines.

In: a run of a DDP job, or times of blocks. Out: the forecast on stdout, as text or JSON. It computes nothing.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapwatch.commands.report import parse_numbers, parse_width
from overlapwatch.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from overlapwatch.whatif.cost import Cost

SCHEMA = 1


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "whatif",
        help="what other bucket caps would have done to a recorded DDP run",
        description="Simulate a recorded DDP run with other bucket caps: gradients become ready as they did, buckets "
        "are laid out as DDP would, and collectives queue at a fitted cost. Or, without a run, place blocks of "
        "compute and of communication on two engines.",
    )
    parser.add_argument("input", metavar="RUN", nargs="?", help="a run directory, or a log")
    parser.add_argument(
        "--bucket-cap-mb",
        metavar="N[,M]",
        help="caps to try, MiB; `default` is DDP's own (default: 1 to 200)",
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
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--width", metavar="N", help="characters a line (default: the terminal's, else 100)"
    )
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
        _ddp(arguments, width)
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
        _print_json({"two_engines": result.to_dict()})
    else:
        _print(engines(result, width or DEFAULT_WIDTH), width)


def _ddp(arguments: argparse.Namespace, width: int | None) -> None:
    caps = _caps(arguments.bucket_cap_mb)
    cost = _cost(arguments.latency_us, arguments.gb_per_s)
    ranks = parse_numbers(arguments.rank, "rank")
    if ranks is not None and len(ranks) != 1:
        raise ConfigurationError(f"--rank {arguments.rank}: one rank is told at a time")
    from overlapwatch.commands.progress import LateProgress  # noqa: PLC0415 - slow to import
    from overlapwatch.reports.whatif import ddp  # noqa: PLC0415
    from overlapwatch.sources import open_trace  # noqa: PLC0415
    from overlapwatch.whatif.ddp import DEFAULT_CAPS_MB, ddp_forecast  # noqa: PLC0415

    path = Path(arguments.input)
    with LateProgress(f"reading {path}", sys.stderr) as progress:
        recordings = open_trace(path, progress=progress)
    if ranks is not None:
        told = [one for one in recordings if one.timeline.origin.rank in ranks]
        if not told:
            raise InputError(f"{path}: no rank {ranks[0]} in it")
        recordings = [*told, *(one for one in recordings if one is not told[0])]
    result = ddp_forecast(recordings, caps or DEFAULT_CAPS_MB, cost)
    if arguments.json:
        _print_json({"input": str(path), "ddp": result.to_dict()})
    else:
        _print(ddp(result), width)


def _print(parts: "Iterable[RenderableType]", width: int | None) -> None:
    from overlapwatch.reports.layout import DEFAULT_WIDTH, terminal, to_text  # noqa: PLC0415

    if sys.stdout.isatty():
        terminal(width).print(*parts, sep="\n")
    else:
        sys.stdout.write(to_text(parts, width or DEFAULT_WIDTH))


def _print_json(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": SCHEMA, **fields}, indent=1, allow_nan=False) + "\n")


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
