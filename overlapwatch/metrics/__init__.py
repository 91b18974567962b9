"""Metrics sinks: the numbers of every step, for the tools that people watch jobs with.

In: names in the setting `sinks`. Out: a `Maker` for each, whose sink takes SUMMARY rows as `log.sinks` describes. What
is measured, and under which names, is in `catalogue`; how it adds up in `tally`. A library is imported when its sink is
opened, and looked for before, so that a missing one is one sentence on every rank alike. What only one rank can meet (a
port in use, a backend that is gone) is a warning there, and training goes on.
"""

from collections.abc import Mapping
from pathlib import Path

from overlapwatch.log.sinks import Maker, MetricsSink
from overlapwatch.metrics.run_of_rank import RunOfRank

__all__ = ["RunOfRank", "makers"]


def makers(run: RunOfRank, sink_ranks: tuple[int, ...] | str | None) -> Mapping[str, Maker]:
    """Return how each name becomes a sink of this rank.

    Args:
        run: this rank.
        sink_ranks: the setting: which ranks have sinks.

    """
    alone = run.world == 1 or (isinstance(sink_ranks, tuple) and len(set(sink_ranks)) < 2)

    def tensorboard(argument: str, rank: int) -> MetricsSink:
        from overlapwatch.metrics.tensorboard import TensorBoard  # noqa: PLC0415 - only when used
        from overlapwatch.metrics.tracker import Tracker  # noqa: PLC0415

        return Tracker(TensorBoard(Path(argument.replace("{rank}", str(rank))), run))

    def prometheus(argument: str, _rank: int) -> MetricsSink:
        from overlapwatch.metrics.prometheus import PrometheusSink  # noqa: PLC0415

        return PrometheusSink(argument, run)

    def prometheus_file(argument: str, _rank: int) -> MetricsSink:
        from overlapwatch.metrics.prometheus import PrometheusFileSink  # noqa: PLC0415

        return PrometheusFileSink(argument, run, alone=alone)

    def otel(_argument: str, _rank: int) -> MetricsSink:
        from overlapwatch.metrics.opentelemetry import OpenTelemetrySink  # noqa: PLC0415

        return OpenTelemetrySink(run)

    def wandb(_argument: str, _rank: int) -> MetricsSink:
        from overlapwatch.metrics.tracker import Tracker  # noqa: PLC0415
        from overlapwatch.metrics.wandb import WeightsAndBiases  # noqa: PLC0415

        return Tracker(WeightsAndBiases(), every_s=0)

    def mlflow(_argument: str, _rank: int) -> MetricsSink:
        from overlapwatch.metrics.mlflow import MLflow  # noqa: PLC0415
        from overlapwatch.metrics.tracker import Tracker  # noqa: PLC0415

        return Tracker(MLflow())

    return {
        "tensorboard": Maker("tensorboard:DIR", tensorboard, checked=True),
        "prometheus": Maker("prometheus:PORT", prometheus, every_rank=True, checked=True),
        "prometheus-file": Maker(
            "prometheus-file:PATH", prometheus_file, every_rank=True, checked=True
        ),
        "otel": Maker("otel", otel, every_rank=True, checked=True),
        "wandb": Maker("wandb", wandb, checked=True),
        "mlflow": Maker("mlflow", mlflow, checked=True),
    }
