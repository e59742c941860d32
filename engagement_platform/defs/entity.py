"""An entity that partial updates describe, as Dagster sees it: changeset, base and view, and what watches over them.

What a batch does is `pipelines/profiles/`; when the base is written, and why, is its `schedule`. What the checks
find is `entity_checks`. The entity that ships is `profile`, those that people declare come from `components`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from typing import Any

import dagster as dg

from engagement_platform.defs.checks import FRESH, selected
from engagement_platform.defs.engagement import (
    IngestConfig,
    Ingestion,
    conservation_spec,
    ingest,
    partition_days,
    with_conservation,
)
from engagement_platform.defs.entity_checks import REPLAY, SIZE, WATERMARK, entity_results, state_of, waits_of
from engagement_platform.defs.evaluations import carry_over, report
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.profiled import changes_metadata, moved_metadata
from engagement_platform.defs.sensors import drain_request, recent_runs, to_report, why_not
from engagement_platform.defs.specs import DAYS, GROUP, entity_view_spec, key_of, table_spec
from engagement_platform.defs.telling import Tables, callbacks_of, tell
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.defs.watched_view import kept, looks, observation
from engagement_platform.defs.watched_view import looked as looked_at
from engagement_platform.engine.job import BatchReport, Callbacks, MicroBatchJob
from engagement_platform.engine.model import JobState
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.job import job_name as ingest_name
from engagement_platform.pipelines.profiles.rematerialize import job_name as rematerialize_name
from engagement_platform.pipelines.profiles.rematerialize import known_rounds
from engagement_platform.pipelines.profiles.schedule import Waits, due, pressing
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

    def build(self, job: str, opened: Opened, callbacks: Callbacks) -> MicroBatchJob[Any]:
        """One of the two jobs."""
        from engagement_platform.jobs import build_declared
        from engagement_platform.pipelines.declarations.declared import DeclaredEntity

        declared = DeclaredEntity(self.topic(opened.settings), self.of(opened.settings))
        return build_declared(job, declared, opened.spark, opened.settings, opened.stores, callbacks)

    def again(self, day: date, opened: Opened, callbacks: Callbacks) -> Iterator[BatchReport]:
        """What was ingested on a day, read once more."""
        from engagement_platform.jobs import reread
        from engagement_platform.pipelines.declarations.declared import DeclaredEntity

        declared = DeclaredEntity(self.topic(opened.settings), self.of(opened.settings))
        return reread([day], opened.spark, opened.settings, opened.stores, callbacks, declared=declared)

    @cached_property
    def changeset_asset(self) -> dg.AssetsDefinition:
        """Changes from Kafka, one partition a batch."""
        entity = self.entity
        changes = Ingestion(
            self.ingestion,
            Tables({entity.changeset: "changeset"}, {QUARANTINE: "quarantine"}, partial(changes_metadata, entity)),
            entity.changeset,
            (dg.AssetCheckKey(self.changeset, FRESH), dg.AssetCheckKey(self.changeset, SIZE)),
            partial(self.build, self.ingestion),
            self.again,
        )

        @dg.multi_asset(
            name=f"ingest_{self.name}_changeset",
            specs=[table_spec(entity.changeset, [self.topic_key]).replace_attributes(group_name=self.group)],
            check_specs=[conservation_spec(entity.changeset)],
            partitions_def=DAYS,
            backfill_policy=dg.BackfillPolicy.single_run(),
            # One pool each: while the base is written, changes go on landing.
            pool=f"{self.name}_changeset",
            description=f"Partial updates from Kafka, one partition a batch; each is visible in {entity.view} with its "
            "commit. A day before today is read again: readers see a difference only where something had not landed.",
        )
        def changeset(
            context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
        ) -> Iterator[dg.AssetCheckResult]:
            yield from ingest(changes, context, config.mode, platform)

        return changeset

    @cached_property
    def base_asset(self) -> dg.AssetsDefinition:
        """The base, written by rematerializations."""
        entity = self.entity
        checks = (dg.AssetCheckKey(self.base, WATERMARK), dg.AssetCheckKey(self.base, REPLAY))

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
                done = tell(
                    context, tables, opened, self._moved(opened, callbacks_of(context), partition_days(context))
                )
                for number, _report in enumerate(done):
                    if number == 0:
                        carry_over(context, checks)
            # Each batch was told as it ended; a plain function's None would be one more materialization, without
            # figures.
            yield from ()

        return base

    def _moved(
        self, opened: Opened, callbacks: Callbacks, days: Sequence[date]
    ) -> Iterator[tuple[date, BatchReport | None]]:
        """Batch after batch until nothing waits, each with the day on which it was planned. Before that the days before
        today that were asked for, with None: a backfill would wait for them for ever."""
        from engagement_platform.engine.drain import DrainPolicy, drain

        job = self.build(self.rematerialization, opened, callbacks)
        once = DrainPolicy(idle_timeout=timedelta(0), max_duration=opened.settings.drain.max_duration)
        today = datetime.now(UTC).date()
        for day in days:
            if day < today:
                yield day, None
        for told_of_one in drain(job, once):
            yield told_of_one.manifest.ingestion_ts.date(), told_of_one

    @property
    def ingest_job(self) -> str:
        """Name of the job that lands changes, as Dagster knows it."""
        return self.ingestion.replace("-", "_")

    @property
    def move_job(self) -> str:
        """Name of the job that writes the base, as Dagster knows it."""
        return self.rematerialization.replace("-", "_")

    @cached_property
    def backlog(self) -> dg.SensorDefinition:
        """Launches a drain run where changes wait."""

        @dg.sensor(
            name=f"{self.name}_changes_backlog", job_name=self.ingest_job, minimum_interval_seconds=5,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description=f"Launches a drain run when changes of {self.name}s wait on the broker and none is under way.",
        )  # fmt: skip
        def changes_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
            settings = platform.settings()
            looked = waiting(settings)
            return drain_request(self.ingestion, self.changeset_asset, looked, context, self.topic(settings))

        return changes_backlog

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
            found = state_of(self.entity, looked.settings)
            waits = waits_of(self.of(looked.settings), looked, found) if found else None
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
            description="Moves changes into the base at the cadence that costs least (rematerialize.cadence); skipped "
            "until that is reached, with the reasoning.",
        )  # fmt: skip
        def rematerialize_by_cadence(
            context: dg.ScheduleEvaluationContext, platform: Platform
        ) -> dg.RunRequest | dg.SkipReason:
            looked = waiting(platform.settings())
            found = state_of(self.entity, looked.settings)
            waits = waits_of(self.of(looked.settings), looked, found) if found else None
            return self.move_request(context.instance, looked, waits, by_cadence=True)

        return rematerialize_by_cadence

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
            is_due, said = due(waits, known_rounds(looked.stores, self.entity), datetime.now(UTC), settings)
            why = said if is_due else None
        else:
            why, said = pressing(waits, settings), f"{waits.pending_rows:,} changes wait, within all limits."
        if why is None:
            return dg.SkipReason(said)
        recent = recent_runs(instance, self.move_job, self.base_asset)
        if no := why_not(max(1, waits.pending_rows), recent, time.time()):
            return dg.SkipReason(f"{why}. {no}")
        today = datetime.now(UTC).date().isoformat()
        return dg.RunRequest(partition_key=today if DAYS.has_partition_key(today) else None, tags={WHY: why})

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
            (REPLAY, self.base): "The view shows some keys of the newest batch as a replay of them ends.",
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
            description=f"Reports the checks of {self.name}s: freshness, size of the changeset, watermark, view "
            "against a replay.",
        )  # fmt: skip
        def watch_entities(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
            news, cursor = to_report(self.results(waiting(platform.settings())), context.cursor, time.time())
            report(context.instance, news)
            context.update_cursor(cursor)
            return dg.SkipReason(f"Reported {len(news)} checks." if news else "Nothing has changed.")

        return watch_entities

    def definitions(self) -> dg.Definitions:
        """Assets, jobs, checks, sensors and schedule."""
        ingest_job = dg.define_asset_job(
            self.ingest_job,
            selection=with_conservation(self.changeset_asset),
            description=f"Drain new changes of {self.name}s.",
            executor_def=dg.in_process_executor,
        )
        move_job = dg.define_asset_job(
            self.move_job,
            selection=dg.AssetSelection.assets(self.base_asset).without_checks(),
            description="Move changes that wait into the base. Readers see no difference.",
            executor_def=dg.in_process_executor,
        )
        view = entity_view_spec(self.entity).replace_attributes(group_name=self.group)
        return dg.Definitions(
            assets=[self.changeset_asset, self.base_asset, view],
            jobs=[ingest_job, move_job],
            asset_checks=[self.checks],
            sensors=[self.backlog, self.pressing, self.watch],
            schedules=[self.by_cadence],
        )
