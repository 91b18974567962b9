"""The metrics of a watched rank, each declared once: name, unit, help, how it is taken, how it is kept.

In: nothing. Out: `OF_A_STEP`, the numbers of one step, taken from its SUMMARY row; `OF_THE_WATCH`, what a watch knows
at any time; `FAMILIES`, all that Prometheus and OpenTelemetry get of both. Every sink, and the tables of
docs/metrics.md, are made from these lists. What a number means is in docs/definitions.md.

| kept as   | name, for exposed communication      | what it holds                         |
|-----------|--------------------------------------|---------------------------------------|
| value     | exposed_communication_seconds        | one step (TensorBoard, W&B, MLflow)   |
| gauge     | last_exposed_communication_seconds   | the latest step in statistics         |
| counter   | exposed_communication_seconds_total  | the sum over the steps in statistics  |
| histogram | step_seconds (step and tail only)    | all steps in statistics               |

What is not known of a step is absent, and added to nothing. The four parts of a step (compute only, hidden, exposed,
idle) are known together or not at all, so their counters can be compared. It does not know any library.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from overlapwatch.vocabulary import NOT_KNOWN, OUT_OF_STATISTICS, StepFlag

PREFIX = "overlapwatch"

Row = Mapping[str, int]
"""A SUMMARY row by field."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and how it is written.

    Args:
        suffix: what names end in, in the plural; "" where things are counted.
        code: as OpenTelemetry writes it (UCUM).
        per: how many of what is taken make one.

    """

    suffix: str
    code: str
    per: float = 1


SECONDS = Unit("seconds", "s", 1e9)  # taken in ns
BYTES = Unit("bytes", "By")
RATIO = Unit("ratio", "1")
STEPS = Unit("", "{step}")
COLLECTIVES = Unit("", "{collective}")
BUCKETS = Unit("", "{bucket}")
RECORDS = Unit("", "{record}")


class Shape(Enum):
    """How a family is kept."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name, as Prometheus and OpenTelemetry see them.

    Args:
        stem: the name without prefix, unit and the `_total` of a counter.
        unit, shape, help: what it holds; `help` is one sentence.
        bounds: upper bounds of a histogram, in its unit.
        label: what its series are told apart by, beside rank and run; "" without.

    """

    stem: str
    unit: Unit
    shape: Shape
    help: str
    bounds: tuple[float, ...] = ()
    label: str = ""

    @property
    def plain(self) -> str:
        """The name without prefix."""
        unit = f"_{self.unit.suffix}" if self.unit.suffix else ""
        return f"{self.stem}{unit}" + ("_total" if self.shape is Shape.COUNTER else "")

    @property
    def name(self) -> str:
        """The name for Prometheus; a histogram's series add `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}_{self.plain}"

    @property
    def dotted(self) -> str:
        """The name for OpenTelemetry, of which the usual translation to Prometheus makes `name`."""
        return f"{PREFIX}.{self.stem}"


Take = Callable[[Row], "float | None"]


@dataclass(frozen=True, slots=True)
class StepMetric:
    """One number of a step, and the families that keep it.

    Args:
        name: of its value, without prefix.
        unit, help: of its value.
        take: the number of a row, in ns where the unit is seconds; None: not known.
        latest: the gauge.
        total: the counter; None where a sum says nothing, or says it with a histogram.
        histogram: None without one.

    """

    name: str
    unit: Unit
    help: str
    take: Take
    latest: Family
    total: Family | None
    histogram: Family | None

    def value(self, row: Row) -> float | None:
        """Return it for one step, in its unit; None where it is not known."""
        taken = self.take(row)
        return None if taken is None else taken / self.unit.per


def _of_a_step(
    stem: str,
    unit: Unit,
    text: str,
    take: Take,
    *,
    added: bool = False,
    bounds: tuple[float, ...] = (),
) -> StepMetric:
    latest = Family(f"last_{stem}", unit, Shape.GAUGE, f"{text}: the latest step in statistics.")
    total = Family(stem, unit, Shape.COUNTER, f"{text}: sum over the steps in statistics.")
    spread = Family(stem, unit, Shape.HISTOGRAM, f"{text}: the steps in statistics.", bounds)
    return StepMetric(
        name=spread.plain,
        unit=unit,
        help=f"{text}.",
        take=take,
        latest=latest,
        total=total if added else None,
        histogram=spread if bounds else None,
    )


def _field(name: str) -> Take:
    return lambda row: None if row[name] == NOT_KNOWN else row[name]


def _took(row: Row) -> float | None:
    return row["end_ns"] - row["start_ns"]


def _ratio(part: Take, whole: Take) -> Take:
    def take(row: Row) -> float | None:
        above, below = part(row), whole(row)
        return above / below if above is not None and below else None

    return take


def _one_two_five(first: float, decades: int) -> tuple[float, ...]:
    """Return 1, 2 and 5 times each power of ten, and the next power."""
    steps = [first * 10**n * m for n in range(decades) for m in (1, 2, 5)]
    return tuple(round(bound, 9) for bound in (*steps, first * 10**decades))


_PARTS = (
    ("compute_only", "Compute without communication", "compute_only_ns"),
    ("hidden_communication", "Communication behind compute", "overlap_ns"),
    ("exposed_communication", "Communication without compute", "communication_only_ns"),
    ("idle", "Neither compute nor communication", "idle_ns"),
)
_COUNTS = (
    ("collectives", COLLECTIVES, "Collectives", "collectives"),
    ("buckets", BUCKETS, "Gradient buckets reduced (FSDP2: modules)", "buckets"),
    ("unfinished_collectives", COLLECTIVES, "Collectives without a finish", "unfinished"),
    ("unobservable_collectives", COLLECTIVES, "Collectives of unseen finish", "unobservable"),
)

OF_A_STEP: tuple[StepMetric, ...] = (
    _of_a_step(
        "step", SECONDS, "Duration of a step", _took, bounds=_one_two_five(0.001, decades=5)
    ),
    *(_of_a_step(stem, SECONDS, text, _field(field), added=True) for stem, text, field in _PARTS),
    _of_a_step("compute", SECONDS, "Compute, hiding or not", _field("compute_ns")),
    _of_a_step("communication", SECONDS, "Communication", _field("communication_ns")),
    _of_a_step(
        "overlap",
        RATIO,
        "Hidden share of communication",
        _ratio(_field("overlap_ns"), _field("communication_ns")),
    ),
    _of_a_step(
        "exposed",
        RATIO,
        "Exposed communication as a share of the step",
        _ratio(_field("communication_only_ns"), _took),
    ),
    _of_a_step(
        "tail",
        SECONDS,
        "Critical tail, from the last compute to the end of the last gradient reduction",
        _field("tail_ns"),
        bounds=_one_two_five(0.0001, decades=5),
    ),
    _of_a_step("wait", SECONDS, "Compute waiting for communication", _field("wait_ns"), added=True),
    _of_a_step("payload", BYTES, "Logical bytes of collectives", _field("bytes"), added=True),
    *(
        _of_a_step(stem, unit, text, _field(field), added=True)
        for stem, unit, text, field in _COUNTS
    ),
)

LEFT_OUT: tuple[tuple[int, str], ...] = tuple(
    (int(flag), str(flag.name).lower()) for flag in StepFlag if flag & OUT_OF_STATISTICS
)
"""Why a step is in no statistics; of several reasons the first one counts."""


def why_left_out(flags: int) -> str | None:
    """Return why a step with these flags is in no statistics; None when it is."""
    return next((word for flag, word in LEFT_OUT if flags & flag), None)


STEP_NUMBER = Family(
    "step_number", STEPS, Shape.GAUGE, "Number of the latest step, from 1 where the watch began."
)
STEP_TIMESTAMP = Family(
    "last_step_timestamp", SECONDS, Shape.GAUGE, "Unix time at which the latest step was summed up."
)
STEPS_SEEN = Family("steps", STEPS, Shape.COUNTER, "Steps that ended, in statistics or not.")
STEPS_LEFT_OUT = Family(
    "steps_left_out", STEPS, Shape.COUNTER, "Steps in no statistics, and why.", label="because"
)
SLOW_STEPS = Family(
    "slow_steps", STEPS, Shape.COUNTER, "Steps slower than the running 99th percentile."
)
IN_FLIGHT = Family(
    "collectives_in_flight", COLLECTIVES, Shape.GAUGE, "Collectives launched and not finished now."
)
OLDEST_IN_FLIGHT = Family(
    "oldest_in_flight",
    SECONDS,
    Shape.GAUGE,
    "Age of the oldest collective in flight; absent while there is none.",
)
RECORDS_LOST = Family(
    "records_lost", RECORDS, Shape.COUNTER, "Records overwritten before they were read."
)
RECORDS_LATE = Family(
    "records_late", RECORDS, Shape.COUNTER, "Records that came after their step was summed up."
)
DRAIN_CPU = Family("drain_cpu", SECONDS, Shape.COUNTER, "Processor time of the watch's own thread.")

OF_THE_WATCH: tuple[Family, ...] = (
    STEP_NUMBER,
    STEP_TIMESTAMP,
    STEPS_SEEN,
    STEPS_LEFT_OUT,
    SLOW_STEPS,
    IN_FLIGHT,
    OLDEST_IN_FLIGHT,
    RECORDS_LOST,
    RECORDS_LATE,
    DRAIN_CPU,
)
WITH_EVERY_STEP: tuple[Family, ...] = (STEPS_LEFT_OUT, RECORDS_LOST)
"""Of these, TensorBoard, W&B and MLflow get the sum with every step, under the family's plain name."""

FAMILIES: tuple[Family, ...] = (
    *(
        family
        for one in OF_A_STEP
        for family in (one.histogram, one.latest, one.total)
        if family is not None
    ),
    *OF_THE_WATCH,
)
