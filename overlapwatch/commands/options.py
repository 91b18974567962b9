"""What several verbs take from the command line: the flags, and what their texts mean.

In: a parser, to which flags are added; arguments, of which texts are read. Out: plain values, a
`Request`. A text that makes no sense is one sentence, before any input is read. Nothing slow is
imported before that.
"""

import argparse
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlapwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from overlapwatch.commands.inputs import Request

MAX_STEP = (1 << 32) - 1
"""Steps are 32-bit numbers in every record."""
PHASES = ("forward", "backward", "optimizer")
PHASE_RULES = ("auto", "marks", "ranges", "anchors", "none")

StepRange = tuple[int | None, int | None]
"""First and last step, inclusive; None is no limit."""


# -- flags ---------------------------------------------------------------------------------------


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def add_width(parser: argparse.ArgumentParser) -> None:
    """Add `--width`, which `parse_width` reads."""
    parser.add_argument(
        "--width", metavar="N", help="characters a line (default: the terminal's, else 100)"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--output`, which `printing.write` takes."""
    parser.add_argument("--output", metavar="FILE", help="write there instead of to stdout")


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    """Add `--scheduler`, which `map_files` takes."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read on the workers of this Dask scheduler, which must see the same paths",
    )


def add_selection(parser: argparse.ArgumentParser, *, in_full: bool = True) -> None:
    """Add the arguments that `make_request` reads: which time, whose, rules for profiles.

    Args:
        parser: of the verb.
        in_full: whether the verb tells those that are asked for in full, and others in short.

    """
    which = parser.add_argument_group("which time")
    which.add_argument(
        "--step",
        metavar="A:B",
        help="only steps A to B, both included; also 120, :50, 50:",
    )
    which.add_argument(
        "--trim",
        metavar=("A", "B"),
        nargs=2,
        help="only seconds A to B: of the session in an Nsight export, else after the first event",
    )
    which.add_argument("--phase", choices=PHASES, help="only the moments of this phase")
    which.add_argument(
        "--boundary",
        choices=("clip", "contained"),
        default="clip",
        help="spans across the window's edge: cut them (default), or leave them out",
    )
    whose = parser.add_argument_group("whose")
    each = ", each in full" if in_full else ""
    default = f"all{', one in full' if in_full else ''}"
    whose.add_argument(
        "--rank", metavar="N[,M]", help=f"only these ranks{each} (default: {default})"
    )
    whose.add_argument("--device", metavar="N[,M]", help=f"only these devices of a profile{each}")
    rules = parser.add_argument_group("rules for profiles")
    rules.add_argument(
        "--comm-pattern",
        metavar="REGEX",
        action="append",
        default=[],
        help="kernels with this in their name are communication too; may be given several times",
    )
    rules.add_argument(
        "--phase-rule",
        choices=PHASE_RULES,
        default="auto",
        help="what tells the phases: recorded marks, ranges around the launch, anchor kernels "
        "(default: the first of these that tells)",
    )
    rules.add_argument(
        "--anchor-forward", metavar="REGEX", help="kernels that only forward runs (attention)"
    )
    rules.add_argument("--anchor-backward", metavar="REGEX", help="kernels that only backward runs")
    rules.add_argument(
        "--step-gap-ms",
        metavar="N",
        help="a longer gap between anchor kernels starts a step, where no steps are marked "
        "(default: 300)",
    )


# -- texts -----------------------------------------------------------------------------------------


def make_request(arguments: argparse.Namespace) -> "Request":
    """Return what the arguments ask of each input.

    Raises:
        ConfigurationError: one of them makes no sense.

    """
    steps, trim = parse_steps(arguments.step), parse_trim(arguments.trim)
    ranks = parse_numbers(arguments.rank, "rank")
    devices = parse_numbers(arguments.device, "device")
    for pattern in arguments.comm_pattern:
        parse_pattern(pattern, "--comm-pattern")
    forward = parse_pattern(arguments.anchor_forward, "--anchor-forward")
    backward = parse_pattern(arguments.anchor_backward, "--anchor-backward")
    gap_ns = parse_gap(arguments.step_gap_ms)
    if trim is not None and steps != (None, None):
        raise ConfigurationError("choose --step or --trim, not both")
    # What is slow to import is imported once the arguments make sense.
    from overlapwatch.accounting.analyse import Rules  # noqa: PLC0415
    from overlapwatch.accounting.selection import Selection  # noqa: PLC0415
    from overlapwatch.commands.inputs import Request  # noqa: PLC0415
    from overlapwatch.timeline.step_rules import AnchorRule  # noqa: PLC0415
    from overlapwatch.vocabulary import Phase  # noqa: PLC0415

    usual = AnchorRule()
    anchors = AnchorRule(
        forward or usual.forward, backward or usual.backward, gap_ns or usual.step_gap_ns
    )
    selection = Selection(
        first_step=steps[0],
        last_step=steps[1],
        boundary=arguments.boundary,
        trim=trim,
        phase=Phase[arguments.phase.upper()] if arguments.phase else None,
    )
    rules = Rules(arguments.phase_rule, anchors)
    return Request(selection, rules, ranks, devices, tuple(arguments.comm_pattern))


def parse_steps(text: str | None) -> StepRange:
    """Return the steps asked for: `120`, `100:200` (both included), `:50`, `50:`.

    Raises:
        ConfigurationError: the text is none of these.

    """
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    numbers = [_step(part, text) if part.strip() else None for part in (first, last)]
    if numbers == [None, None]:
        raise _bad_step(text)
    low, high = numbers if colon else (numbers[0], numbers[0])
    if low is not None and high is not None and high < low:
        raise ConfigurationError(f"--step {text}: the first step lies after the last")
    return low, high


def _step(part: str, text: str) -> int:
    if not (part.strip().isascii() and part.strip().isdigit()) or int(part) > MAX_STEP:
        raise _bad_step(text)
    return int(part)


def _bad_step(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"--step takes step numbers such as 120, 100:200, :50 or 50:, not {text!r}"
    )


def parse_numbers(text: str | None, what: str) -> tuple[int, ...] | None:
    """Return the ranks or devices asked for: `3`, `0,3`; None without any.

    Raises:
        ConfigurationError: the text is neither.

    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigurationError(f"--{what} takes {what}s such as 3 or 0,3, not {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_trim(texts: Sequence[str] | None) -> tuple[float, float] | None:
    """Return the seconds asked for; None without any.

    Raises:
        ConfigurationError: they are no two numbers in order.

    """
    if texts is None:
        return None
    low, high = (_number(text) for text in texts)
    if low is None or high is None or high <= low:
        asked = " ".join(texts)
        raise ConfigurationError(
            f"--trim takes two ascending numbers of seconds such as 39.964 46.123, not {asked!r}"
        )
    return low, high


def parse_gap(text: str | None) -> int | None:
    """Return the step gap asked for in ms, in ns; None without any.

    Raises:
        ConfigurationError: it is no number above 0.

    """
    if text is None:
        return None
    gap = _number(text)
    if gap is None or round(gap * 1e6) <= 0:
        raise ConfigurationError(f"--step-gap-ms takes a number above 0, not {text!r}")
    return round(gap * 1e6)


def parse_pattern(text: str | None, flag: str) -> str | None:
    """Return the regular expression asked for; None without any.

    Raises:
        ConfigurationError: it is none, or matches every name.

    """
    if text is None:
        return None
    try:
        everything = re.compile(text).search("") is not None
    except re.error as error:
        raise ConfigurationError(f"{flag} {text!r} is no regular expression: {error}") from None
    if everything:
        raise ConfigurationError(f"{flag} {text!r} matches every kernel")
    return text


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e9 else None


def parse_width(text: str | None) -> int | None:
    """Return the width asked for; None without any.

    Raises:
        ConfigurationError: it is no number of characters.

    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 1000:
        raise ConfigurationError(f"--width takes a number of characters up to 1000, not {text!r}")
    return int(text)
