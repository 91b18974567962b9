"""`overlapwatch export INPUT ... --to FORMAT --output PATH`: what was recorded, for other tools.

In: what `report` reads, with the same selection. Out: a trace for Perfetto, tables as CSV or Parquet,
or the JSON of the report; exit code 1 when the numbers do not add up. It computes nothing.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapwatch.commands import exit_codes
from overlapwatch.commands.options import add_selection, make_request
from overlapwatch.errors import ConfigurationError, InputError

if TYPE_CHECKING:
    from overlapwatch.accounting.closure import Check
    from overlapwatch.commands.inputs import Request
    from overlapwatch.commands.subjects import Inputs, Member, Survey
    from overlapwatch.exports.clocks import Clock
    from overlapwatch.exports.subject import Subject
    from overlapwatch.exports.write_tables import Sink

FORMATS = ("perfetto", "csv", "parquet", "json")


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the parser of this verb."""
    parser = subparsers.add_parser(
        "export",
        help="a trace for Perfetto, tables (CSV, Parquet) or JSON of a run or a profile",
        description="Write what was recorded, and what the report says of it, for other tools: a trace that "
        "ui.perfetto.dev and chrome://tracing open, tables as CSV or Parquet, or the JSON of the report.",
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="a run directory, a log, an Nsight Systems export or a PyTorch (Kineto) trace",
    )
    parser.add_argument("--to", metavar="FORMAT", choices=FORMATS, required=True,
                        help=f"{', '.join(FORMATS)}")  # fmt: skip
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="a file (perfetto, json; compressed when it ends in .gz), or a directory for the tables; "
        "what is there is replaced",
    )
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="only this table, as a file; csv goes to stdout without --output",
    )
    add_selection(parser, in_full=False)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the export; return 0, or 1 when a closure check failed.

    Raises:
        ConfigurationError, InputError: one sentence for the user.

    """
    form, output, table = arguments.to, arguments.output, arguments.table
    if table is not None and form not in {"csv", "parquet"}:
        raise ConfigurationError(f"--table: {form} has no tables; --to csv and --to parquet have")
    if output is None and not (form == "json" or (form == "csv" and table)):
        what = "directory" if form in {"csv", "parquet"} else "file"
        more = ", or a --table for stdout" if form == "csv" else ""
        raise ConfigurationError(f"--to {form} needs --output: a {what} to write{more}")
    request = make_request(arguments)
    paths = [Path(path) for path in arguments.input]
    target = None if output is None else Path(output)
    if target is not None:
        _refuse(target, paths)
    if form == "json":
        return _json(paths, request, target)
    if form == "perfetto":
        assert target is not None
        return _perfetto(paths, request, target)
    return _tables(paths, request, form, table, target)


def _json(paths: Sequence[Path], request: "Request", target: Path | None) -> int:
    from overlapwatch.commands import report  # noqa: PLC0415 - slow to import
    from overlapwatch.commands.inputs import read_all  # noqa: PLC0415
    from overlapwatch.exports.files import new_file  # noqa: PLC0415

    analyses = read_all(paths, request)
    across = report.compared(analyses)
    text = report.to_json(analyses, across)
    if target is None:
        sys.stdout.write(text)
    else:
        with _writing(target), new_file(target) as file:
            file.write(text.encode())
        _say(f"written to {target}")
    return report.exit_code(analyses, across)


# -- a trace -------------------------------------------------------------------------------------


def _perfetto(paths: Sequence[Path], request: "Request", target: Path) -> int:
    from overlapwatch.accounting.partition import partition  # noqa: PLC0415 - slow to import
    from overlapwatch.commands.subjects import Inputs  # noqa: PLC0415
    from overlapwatch.exports.files import new_file  # noqa: PLC0415
    from overlapwatch.exports.perfetto import add_process  # noqa: PLC0415
    from overlapwatch.exports.trace_events import TraceFile  # noqa: PLC0415

    inputs = Inputs(paths, request)
    survey = inputs.survey()
    _refuse(target, [one.found.path for one in survey.members])
    tally = _Tally(survey)
    checks: list[Check] = []
    beside: dict[str, Any] = {}
    with _writing(target), new_file(target) as file:
        trace = TraceFile(file, _about(survey, paths))
        for member, chosen, subject in inputs.subjects(survey):
            tally.add(member, subject)
            add_process(trace, member.number, member.title, subject, _clock(member, survey))
            tl, recording = subject.timeline, chosen.recording
            parts = partition(tl, subject.choice.window, subject.lanes)
            checks += parts.checks()
            beside[member.label] = {
                "state": recording.state,
                "partition": parts.to_dict(),
                "not known": [[one.what, one.because] for one in (*tl.unknown, *parts.not_known())],
                "skipped": [[one.what, one.count, one.because] for one in tl.skipped],
                "notes": [*recording.notes, *subject.choice.notes],
            }
        tally.check_not_empty()
        trace.close(beside)
    tally.tell()
    counts = trace.counts
    _say(
        f"written to {target}: {counts['X']:,} spans of {survey.size}"
        + (f", {counts['B']:,} collectives not finished" if counts["B"] else "")
        + "; open it in ui.perfetto.dev or chrome://tracing"
    )
    return exit_codes.of_checks(checks)


def _about(survey: "Survey", paths: Sequence[Path]) -> dict[str, str]:
    """Return the facts that stand at the head of a trace."""
    from overlapwatch import __version__  # noqa: PLC0415

    aligned = [one for one in survey.members if one.fit is not None]
    lost = [one.label for one in survey.members if one.fit is None]
    first = aligned[0].found.table if aligned else survey.members[0].found.table
    clock = " of ".join(filter(None, (first.clock or "clock", first.host)))
    many = len(survey.across.alignment.clocks) > 1 if survey.across else False
    return {
        "made by": f"overlapwatch {__version__}",
        "zero_ns": str(survey.zero_ns),
        "zero": f"ts 0 is {survey.zero_ns} ns on the reference clock: {clock}",
        "clocks": "aligned by the ends of matched collectives" if many else "one clock",
        "not aligned": ", ".join(lost) or "none",
        "inputs": "; ".join(map(str, paths)),
    }


def _clock(member: "Member", survey: "Survey") -> "Clock":
    """Return how a member's times lie on the axis of the trace."""
    from overlapwatch.exports.clocks import Clock  # noqa: PLC0415 - slow to import

    fit = member.fit
    if fit is None:
        return Clock(member.found.first_ns or 0, told="its clock cannot be aligned: it begins at 0")
    told = ""
    if fit.count:
        told = f"clock aligned: {fit.offset_ns:+,} ns, ±{fit.p95_ns or 0:,} ns (p95)"
    return Clock(survey.zero_ns, fit, told)


# -- tables --------------------------------------------------------------------------------------


def _tables(
    paths: Sequence[Path], request: "Request", form: str, only: str | None, target: Path | None
) -> int:
    from overlapwatch.exports import write_tables  # noqa: PLC0415 - slow to import
    from overlapwatch.exports.files import new_file  # noqa: PLC0415
    from overlapwatch.exports.tables import TABLES  # noqa: PLC0415

    if only is not None and only not in TABLES:
        raise ConfigurationError(f"--table {only}: there is none; there are {', '.join(TABLES)}")
    make = write_tables.csv_sink
    if form == "parquet":
        write_tables.arrow()
        make = write_tables.parquet_sink
    from overlapwatch.commands.subjects import Inputs  # noqa: PLC0415

    inputs = Inputs(paths, request)
    survey = inputs.survey()
    rows = dict.fromkeys(TABLES if only is None else (only,), 0)
    chosen = [TABLES[name] for name in rows]
    if target is None:
        sinks: dict[str, Sink] = {chosen[0].name: write_tables.CsvSink(chosen[0], sys.stdout)}
        return _fill(inputs, survey, request, sinks, rows)
    _refuse(target, [one.found.path for one in survey.members])
    with _writing(target):
        if only is None:
            with write_tables.in_directory(target, chosen, form, make) as opened:
                code = _fill(inputs, survey, request, opened, rows)
        else:
            with new_file(target) as file, make(chosen[0], file) as sink:
                code = _fill(inputs, survey, request, {only: sink}, rows)
    told = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    _say(f"written to {target}: rows of {told}")
    return code


def _fill(
    inputs: "Inputs",
    survey: "Survey",
    request: "Request",
    sinks: "Mapping[str, Sink]",
    rows: dict[str, int],
) -> int:
    """Write the rows of all tables that have a sink; count them; return the exit code."""
    from overlapwatch.accounting.analyse import analyse  # noqa: PLC0415 - slow to import
    from overlapwatch.exports.tables import OF_EACH, WAITS, Told, waits  # noqa: PLC0415

    tally = _Tally(survey)
    checks: list[Check] = []
    for member, chosen, subject in inputs.subjects(survey):
        tally.add(member, subject)
        analysis = analyse(chosen.recording, chosen.selection, request.rules, alone=True)
        checks += analysis.checks
        told = Told(member.label, subject, analysis, member.fit if survey.across else None)
        for name, (_, batches) in OF_EACH.items():
            if name in sinks:
                for batch in batches(told):
                    sinks[name].write(batch)
                    rows[name] += len(batch["timeline"])
    tally.check_not_empty()
    if survey.across is not None:
        checks += survey.across.checks()
        if WAITS.name in sinks:
            labels = [survey.label_of(table) for table in survey.across.tables]
            for batch in waits(survey.across, labels):
                sinks[WAITS.name].write(batch)
                rows[WAITS.name] += len(batch["timeline"])
    tally.tell()
    return exit_codes.of_checks(checks)


# -- what is said beside the files ---------------------------------------------------------------


class _Tally:
    """Counts what somebody who opens an export may miss in it."""

    def __init__(self, survey: "Survey") -> None:
        self._notes = list(survey.notes)
        self._ran = self._kept = 0
        self._empty = True
        self._path = survey.members[0].found.path

    def add(self, member: "Member", subject: "Subject") -> None:
        """Count one rank and device."""
        steps = subject.steps()
        with_events = set(subject.timeline.steps["step"].tolist())
        self._ran += len(steps)
        self._kept += sum(step in with_events for step in steps["step"].tolist())
        self._empty &= member.found.first_ns is None
        if subject.recording.state == "running":
            self._notes.append(
                f"{member.label} still runs: what it has recorded so far is exported"
            )
        self._notes += [f"{member.label}: {note}" for note in subject.choice.notes]

    def check_not_empty(self) -> None:
        """Raise where there was nothing at all.

        Raises:
            InputError: there was not.

        """
        if self._empty:
            raise InputError(
                f"{self._path}: nothing was recorded: no step, no compute, no collective"
            )

    def tell(self) -> None:
        """Write the sentences to stderr."""
        if self._kept < self._ran:
            self._notes.append(
                f"the events of {self._kept:,} of {self._ran:,} steps are there; of the others only their numbers"
            )
        for note in dict.fromkeys(self._notes):
            _say(f"note: {note}")


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _refuse(target: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read.

    Raises:
        ConfigurationError: the target is an input.

    """
    for path in inputs:
        if target.resolve() == path.resolve():
            raise ConfigurationError(f"--output {target}: it is an input and would be overwritten")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Tell in one sentence why a file cannot be written.

    Raises:
        ConfigurationError: it cannot.

    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"--output {target}: {error.strerror or error}") from None
