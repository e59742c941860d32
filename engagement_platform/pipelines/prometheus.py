"""Figures of jobs for Prometheus, from what `status` knows. Names and labels are a contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from engagement_platform.pipelines.status import JobStatus, freshness_quantiles

SHARES = (0.5, 0.95)
OUTCOMES = ("landed", "duplicates", "quarantined")
"""What became of records, as batches count it."""

Sample = tuple[Sequence[str], float | None]
"""The job and values of more labels; the figure, None where there is none."""


def figures(jobs: Sequence[JobStatus]) -> bytes:
    """All figures in Prometheus's text format."""
    return generate_latest(_Jobs(jobs))


class _Jobs(Collector):
    def __init__(self, jobs: Sequence[JobStatus]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """Each figure of all jobs."""
        jobs = self._jobs
        done = [(job.job, job.finished) for job in jobs if job.finished]
        yield _gauge(
            "waiting",
            "Messages, objects or rows that no finished batch has read.",
            (((job.job,), job.backlog) for job in jobs),
        )
        yield _gauge(
            "waiting_since_timestamp_seconds",
            "When the oldest batch was planned of which rows wait.",
            (((job.job,), job.waiting_since.timestamp() if job.waiting_since else None) for job in jobs),
        )
        yield _gauge(
            "failed",
            "1 while the last batch is one that failed.",
            (((job.job,), job.failure is not None) for job in jobs),
        )
        yield _counter("batches", "Batches that finished.", (((job.job,), job.batches) for job in jobs))
        yield _counter(
            "records",
            "Records of finished batches, by what became of them.",
            (((job.job, outcome), job.totals[outcome]) for job in jobs for outcome in OUTCOMES),
            "outcome",
        )
        yield _gauge(
            "batch_seconds",
            "From first attempt to end, of the last batch that finished.",
            (((job,), (batch.updated_ts - batch.started_ts).total_seconds()) for job, batch in done),
        )
        yield _gauge(
            "batch_finished_timestamp_seconds",
            "When the last batch finished.",
            (((job,), batch.updated_ts.timestamp()) for job, batch in done),
        )
        yield _gauge(
            "batch_freshness_seconds",
            "From a message's production to the end of the last batch that finished, by share of its messages.",
            (
                ((job, str(share)), seconds)
                for job, batch in done
                for share, seconds in zip(SHARES, freshness_quantiles([batch], SHARES), strict=True)
            ),
            "quantile",
        )


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, what: str, samples: Iterable[Sample], *labels: str
) -> Metric:
    family = kind(f"engagement_platform_{name}", what, labels=("job", *labels))
    for values, figure in samples:
        if figure is not None:
            family.add_metric(values, figure)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)
