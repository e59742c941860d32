"""An entity that partial updates describe, as Dagster sees it: changeset, base and view, and what watches over them.

What a batch does is `pipelines/profiles/`; when the base is written, and why, is its `schedule`. What the checks
find is `entity_checks`. The entity that ships is `profile`, those that people declare come from `components`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property, partial
from typing import Any

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.checks import FRESH, selected
from engagement_platform.defs.entity_checks import SIZE, WATERMARK, entity_results, state_of, waits_of
from engagement_platform.defs.evaluations import report_news
from engagement_platform.defs.ingestion import Ingestion, drained, partition_days
from engagement_platform.defs.materialization_events import Tables, callbacks_of, record_batches
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.profile_metadata import changes_metadata, moved_metadata
from engagement_platform.defs.sensors import backlog_sensor, recent_runs, todays_partition, why_not
from engagement_platform.defs.specs import DAYS, GROUP, entity_view_spec, key_of, table_spec
from engagement_platform.defs.view_observation import kept, looks, observation
from engagement_platform.defs.view_observation import looked as looked_at
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob
from engagement_platform.engine.model import JobState
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.job import job_name as ingest_name
from engagement_platform.pipelines.profiles.rematerialize import job_name as rematerialize_name
from engagement_platform.pipelines.profiles.schedule import Waits, due, pressing
from engagement_platform.pipelines.profiles.snapshot import Snapshot
from engagement_platform.settings import Settings

WHY = "engagement_platform/why"
"""Tag of a run that says why it was launched."""


@dataclass(frozen=True)
class EntityParts:
    """Everything of one entity."""

    entity: Entity
    """For names and tables, which do not depend on policies."""
    topic_key: dg.AssetKey
    topic: Callable[[Settings], str]
    of: Callable[[Settings], Entity]
    """The entity under the policies of the settings."""
    group: str = GROUP

    @property
    def name(self) -> str:
        """Of the entity; begins the names of everything here."""
        return self.entity.name

    @property
    def changeset(self) -> dg.AssetKey:
        """The changes as they came."""
        return key_of(self.entity.changeset)

    @property
    def base(self) -> dg.AssetKey:
        """All changes up to a batch."""
        return key_of(self.entity.base)

    @property
    def ingestion(self) -> str:
        """Name of the job that lands changes, as the stores know it."""
        return ingest_name(self.entity)

    @property
    def rematerialization(self) -> str:
        """Name of the job that writes the base, as the stores know it."""
        return rematerialize_name(self.entity)

    def declared(self, settings: Settings) -> DeclaredEntity:
        """The entity and its topic, under the policies of the settings."""
        return DeclaredEntity(self.topic(settings), self.of(settings))

    def build(self, job: str, opened: Opened, callbacks: Callbacks) -> MicroBatchJob[Any]:
        """One of the two jobs."""
        from engagement_platform.pipelines.jobs import build_job, parts_of

        declared = self.declared(opened.settings)
        return build_job(job, parts_of(opened.spark, opened.settings, opened.stores, callbacks), declared)

    def reread(self, day: date, opened: Opened, callbacks: Callbacks) -> Iterator[BatchReport]:
        """What was ingested on a day, read once more."""
        from engagement_platform.pipelines.jobs import parts_of, reread

        declared = self.declared(opened.settings)
        return reread(day, parts_of(opened.spark, opened.settings, opened.stores, callbacks), declared)

    @cached_property
    def changes(self) -> Ingestion:
        """Changes from Kafka, one partition a batch."""
        entity = self.entity
        return Ingestion(
            self.ingestion,
            f"ingest_{self.name}_changeset",
            [table_spec(entity.changeset, [self.topic_key]).replace_attributes(group_name=self.group)],
            # One pool each: while the base is written, changes go on landing.
            f"{self.name}_changeset",
            Tables({entity.changeset: "changeset"}, {QUARANTINE: "quarantine"}, partial(changes_metadata, entity)),
            entity.changeset,
            partial(self.build, self.ingestion),
            f"Partial updates from Kafka, one partition a batch; each is visible in {entity.view} with its commit. A "
            "day before today is read again: readers see a difference only where something had not landed.",
            self.reread,
        )

    @cached_property
    def base_asset(self) -> dg.AssetsDefinition:
        """The base, written by rematerializations."""
        entity = self.entity

        @dg.multi_asset(
            name=f"rematerialize_{self.name}_base",
            specs=[table_spec(entity.base, [self.changeset]).replace_attributes(group_name=self.group)],
            partitions_def=DAYS,
            backfill_policy=dg.BackfillPolicy.single_run(),
            pool=f"{self.name}_materialized",
            description="All changes that wait, moved into the base; readers see no difference. Its partition is the "
            "day of the run; other days have nothing to move, and say so.",
        )
        def base(context: dg.AssetExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
            why = context.run.tags.get(WHY, "launched by hand")
            context.log.info(f"Moving changes: {why}")
            metadata = partial(moved_metadata, entity, why)
            tables = Tables({entity.base: "base"}, {entity.changeset: "changeset"}, metadata, always=True)
            with platform.open(self.rematerialization) as opened:
                for _report in record_batches(context, tables, opened, self._moved(context, opened)):
                    pass
            # A plain function's None would be one more materialization, without figures.
            yield from ()

        return base

    def _moved(self, context: dg.AssetExecutionContext, opened: Opened) -> Iterator[tuple[date, BatchReport | None]]:
        """Batch after batch until nothing waits, each with the day on which it was planned. Before that the days before
        today that were asked for, with None: a backfill would wait for them for ever."""
        today = datetime.now(UTC).date()
        yield from ((day, None) for day in partition_days(context) if day < today)
        job = self.build(self.rematerialization, opened, callbacks_of(context))
        yield from drained(context, opened, job, until_idle=True)

    @property
    def move_job(self) -> str:
        """Name of the job that writes the base, as Dagster knows it."""
        return self.rematerialization.replace("-", "_")

    @cached_property
    def backlog(self) -> dg.SensorDefinition:
        """Launches a drain run where changes wait."""
        return backlog_sensor(
            f"{self.name}_changes_backlog",
            self.ingestion,
            lambda looked: looked.backlog(self.ingestion, self.topic(looked.settings)),
            f"Launches a drain run when changes of {self.name}s wait on the broker and none is under way.",
            assets=self.changes.assets,
        )

    @cached_property
    def pressing(self) -> dg.SensorDefinition:
        """Launches a rematerialization where limits are passed."""

        @dg.sensor(
            name=f"{self.name}_changes_pressing", job_name=self.move_job, minimum_interval_seconds=30,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description="Moves changes into the base when too many wait, when reading through them has become slow, "
            "and when a run was interrupted.",
        )  # fmt: skip
        def changes_pressing(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
            looked = waiting(platform.settings())
            found, waits = self._waits(looked)
            if found and waits:
                context.update_cursor(self._observe(context, waits, f"{found.base_version} {found.changeset_version}"))
            return self.move_request(context.instance, looked, waits, by_cadence=False)

        return changes_pressing

    @cached_property
    def by_cadence(self) -> dg.ScheduleDefinition:
        """Launches a rematerialization when it is time."""

        @dg.schedule(
            name=f"rematerialize_{self.name}_by_cadence", job_name=self.move_job, cron_schedule="* * * * *",
            execution_timezone="UTC", default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Moves changes into the base at the cadence of the settings (rematerialize.cadence); skipped "
            "until that is reached.",
        )  # fmt: skip
        def rematerialize_by_cadence(
            context: dg.ScheduleEvaluationContext, platform: Platform
        ) -> dg.RunRequest | dg.SkipReason:
            looked = waiting(platform.settings())
            return self.move_request(context.instance, looked, self._waits(looked)[1], by_cadence=True)

        return rematerialize_by_cadence

    def _waits(self, looked: Waiting) -> tuple[Snapshot | None, Waits | None]:
        """Where base and changeset stand, and what waits; None before they are made."""
        found = state_of(self.entity, looked.settings)
        return found, waits_of(self.of(looked.settings), looked, found) if found else None

    def _observe(self, context: dg.SensorEvaluationContext, waits: Waits, state: str) -> str:
        """Tell of the view where one of its tables changed since the last look; the new cursor."""
        found = looks(context.cursor)
        if not found or found[-1].state != state:
            found.append(looked_at(waits, state, datetime.now(UTC)))
            context.instance.report_runless_asset_event(observation(self.entity, found))
        return kept(found)

    def move_request(
        self, instance: dg.DagsterInstance, looked: Waiting, waits: Waits | None, *, by_cadence: bool
    ) -> dg.RunRequest | dg.SkipReason:
        """One look: a run with its reason, or why not. by_cadence: also when nothing presses. waits: None before the
        tables are made."""
        if waits is None:
            return dg.SkipReason("No change has landed yet.")
        settings, last = looked.settings.rematerialize, looked.checkpoint(self.rematerialization)
        if last is not None and last.state is not JobState.SUCCEEDED:
            why: str | None = f"{last.manifest} is unfinished"
        elif by_cadence:
            is_due, said = due(waits, datetime.now(UTC), settings)
            why = said if is_due else None
        else:
            why, said = pressing(waits, settings), f"{waits.pending_rows:,} changes wait, within all limits."
        if why is None:
            return dg.SkipReason(said)
        recent = recent_runs(instance, self.move_job, self.base_asset)
        if no := why_not(max(1, waits.pending_rows), recent, time.time()):
            return dg.SkipReason(f"{why}. {no}")
        return dg.RunRequest(partition_key=todays_partition(), tags={WHY: why})

    def results(self, looked: Waiting) -> list[dg.AssetCheckResult]:
        """All checks that need no run, as they stand now."""
        return entity_results(self.of(looked.settings), looked, self.topic(looked.settings))

    @cached_property
    def checks(self) -> dg.AssetChecksDefinition:
        """The checks on demand."""
        says = {
            (FRESH, self.changeset): "No change waits longer than `quality.freshness`.",
            (SIZE, self.changeset): "At most `rematerialize.max_pending_rows` changes wait.",
            (WATERMARK, self.base): "The base's watermark is where it was left; no batch is in both tables.",
        }

        @dg.multi_asset_check(
            name=f"watch_{self.name}_tables",
            can_subset=True,
            specs=[dg.AssetCheckSpec(n, asset=asset, description=text) for (n, asset), text in says.items()],
            description=f"From logs, stores, broker and a few rows; the sensor `watch_{self.name}s` reports the same "
            "without a run.",
        )
        def watch_tables(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
            yield from selected(context, self.results(waiting(platform.settings())))

        return watch_tables

    @cached_property
    def watch(self) -> dg.SensorDefinition:
        """Reports the checks without a run."""

        @dg.sensor(
            name=f"watch_{self.name}s", minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
            description=f"Reports the checks of {self.name}s: freshness, size of the changeset, watermark.",
        )  # fmt: skip
        def watch_entities(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
            reported = report_news(context, self.results(waiting(platform.settings())))
            return dg.SkipReason(f"Reported {reported} checks.")

        return watch_entities

    def definitions(self) -> dg.Definitions:
        """Assets, jobs, checks, sensors and schedule."""
        move_job = dg.define_asset_job(
            self.move_job,
            selection=dg.AssetSelection.assets(self.base_asset).without_checks(),
            description="Move changes that wait into the base. Readers see no difference.",
            executor_def=dg.in_process_executor,
        )
        view = entity_view_spec(self.entity).replace_attributes(group_name=self.group)
        return dg.Definitions(
            assets=[self.changes.assets, self.base_asset, view],
            jobs=[self.changes.asset_job(f"Drain new changes of {self.name}s."), move_job],
            asset_checks=[self.checks],
            sensors=[self.backlog, self.pressing, self.watch],
            schedules=[self.by_cadence],
        )
