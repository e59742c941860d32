"""A run that drains for long tells the sums of its batches now and then, and not each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from engagement_platform.defs import materialization_events
from engagement_platform.defs.batches import Tables
from engagement_platform.defs.materialization_events import Context, Recorder
from engagement_platform.defs.platform import Opened
from engagement_platform.lake.engagement import ALIAS, QUARANTINE
from engagement_platform.pipelines.jobs import open_stores
from engagement_platform.settings import Settings
from engagement_platform_tests.defs.test_batches import report

DAY = date(2026, 11, 21)
INTERVAL_S = 5 * 60


@dataclass
class Draining:
    """A run of a job of this name, whose clock goes on when a test says so."""

    instance: dg.DagsterInstance
    recorder: Recorder = field(init=False)
    events: list[Any] = field(default_factory=list)
    now: float = 1000.0
    added: int = 0

    def begin(self, home: Path, tables: Tables = Tables({QUARANTINE: "tables"})) -> None:  # noqa: B008
        """Begin without any batch."""
        settings = Settings(home=home, lake_uri=None)
        context = SimpleNamespace(
            run=SimpleNamespace(job_name="ingest_engagements"), instance=self.instance, log_event=self.events.append,
            log=SimpleNamespace(info=lambda _: None),
        )  # fmt: skip
        opened = Opened(settings, open_stores(settings), cast(Any, None))
        self.recorder = Recorder(cast(Context, context), tables, opened)
        assert settings.dagster.report_interval.total_seconds() == INTERVAL_S

    def add(self, batches: int, seconds: float) -> None:
        """So many batches, each after so many seconds."""
        for _ in range(batches):
            self.now += seconds
            self.recorder.add(DAY, report(batch_id=self.added))
            self.added += 1

    @property
    def told(self) -> list[int]:
        """How many batches each event is of."""
        return [event.metadata["batches"].value for event in self.events]

    @property
    def materialized(self) -> list[bool]:
        """Of each event whether it is a materialization; else it is an observation."""
        return [isinstance(event, dg.AssetMaterialization) for event in self.events]


@pytest.fixture
def draining(monkeypatch: pytest.MonkeyPatch) -> Iterator[Draining]:
    """A run, of a job that has never succeeded."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = Draining(instance)
        monkeypatch.setattr(materialization_events, "time", SimpleNamespace(monotonic=lambda: run.now))
        yield run


def test_batches_are_told_at_once_in_the_first_run_of_a_job_and_then_every_report_interval(
    draining: Draining, tmp_path: Path
) -> None:
    draining.begin(tmp_path)
    draining.add(1, seconds=10)
    assert draining.told == [1], "a newcomer waits to see that batches come"
    draining.add(29, seconds=10)
    assert draining.told == [1]
    draining.add(1, seconds=10)
    assert draining.told == [1, 30]
    draining.add(2, seconds=10)
    draining.recorder.record()
    assert draining.told == [1, 30, 2]
    assert sum(draining.told) == draining.added, "a batch is in no sum, or in two"


def test_a_long_run_materializes_a_table_as_often_as_checks_look_and_in_the_end_and_observes_it_in_between(
    draining: Draining, tmp_path: Path
) -> None:
    """Else most checks of a table are "Not evaluated" for most of the time."""
    draining.begin(tmp_path)
    assert Settings(home=tmp_path).health.check_pause.total_seconds() == 3 * INTERVAL_S
    draining.add(1 + 4 * 30, seconds=10)
    assert draining.materialized == [True, False, False, True, False]
    draining.add(1, seconds=10)
    draining.recorder.record()
    assert draining.materialized == [True, False, False, True, False, True]
    assert draining.told == [1, 30, 30, 30, 30, 1]


def test_a_table_of_many_that_appears_in_a_long_run_is_materialized_with_the_next_event_and_then_with_the_others(
    draining: Draining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [QUARANTINE]
    monkeypatch.setattr(Tables, "changed", lambda *_: list(changed))
    draining.begin(tmp_path, Tables({QUARANTINE: "tables", ALIAS: "tables"}, sparse=True))
    draining.add(1, seconds=10)
    changed.append(ALIAS)
    draining.add(4 * 30, seconds=10)
    kinds = [(event.asset_key.path[-1], isinstance(event, dg.AssetMaterialization)) for event in draining.events]
    both = [("quarantine", True), ("alias", True)]
    neither = [("quarantine", False), ("alias", False)]
    assert kinds == [("quarantine", True), ("quarantine", False), ("alias", True), *neither, *both, *neither]


def test_a_job_that_has_succeeded_before_tells_its_first_batches_after_the_report_interval(
    draining: Draining, tmp_path: Path
) -> None:
    draining.instance.add_run(
        dg.DagsterRun(job_name="ingest_engagements", run_id="1" * 8, status=dg.DagsterRunStatus.SUCCESS)
    )
    draining.begin(tmp_path)
    draining.add(29, seconds=10)
    assert draining.told == []
    draining.add(1, seconds=10)
    assert draining.told == [30]


def test_a_run_that_fails_tells_what_it_had_done(draining: Draining, tmp_path: Path) -> None:
    draining.begin(tmp_path)
    draining.add(1, seconds=1)

    def two_and_a_failure() -> Any:
        yield DAY, report(batch_id=1)
        yield DAY, report(batch_id=2)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        draining.recorder.add_all(two_and_a_failure())
    assert draining.told == [1, 2]


def test_a_new_day_is_told_apart_from_the_one_before(draining: Draining, tmp_path: Path) -> None:
    draining.begin(tmp_path)
    draining.add(3, seconds=1)
    draining.recorder.add(date(2026, 11, 22), report(batch_id=3))
    draining.recorder.record()
    assert draining.told == [1, 2, 1]
