"""An entity that partial updates describe, as Dagster sees it: changeset, base and view, and what watches over them.

What a batch does is `pipelines/profiles/`; when the base is written, and why, is its `schedule`. What the checks
find is `entity_checks`. The entity that ships is `profile`, others are declared with `defs.components`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import dagster as dg

from engagement_platform.defs.backlog import Waiting, waiting
from engagement_platform.defs.batches import Tables
from engagement_platform.defs.entity_checks import checks_of, entity_results, state_of
from engagement_platform.defs.ingestion import UNBOUNDED, Drain, Ingestion
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import (
    TRIED_AGAIN,
    Answer,
    backlog_sensor,
    recent_runs,
    schedule,
    sensor,
    watched,
    why_not,
)
from engagement_platform.defs.specs import PROFILE_CHANGES_TOPIC, key_of, table_spec, view_spec
from engagement_platform.engine.model import JobState
from engagement_platform.lake.engagement import QUARANTINE
from engagement_platform.pipelines.declarations.declared import DeclaredEntity
from engagement_platform.pipelines.jobs import reread, shipped_entity
from engagement_platform.pipelines.profiles.entity import PROFILE, Entity
from engagement_platform.pipelines.profiles.point_read import base_read_seconds, point_read_seconds
from engagement_platform.pipelines.profiles.schedule import Waits, due, pressing
from engagement_platform.pipelines.profiles.snapshot import Snapshot
from engagement_platform.settings import Settings

WHY = "engagement_platform/why"
"""Tag of a run that says why it was launched."""


def changeset_tables(entity: Entity, quarantine_process: str = "quarantine") -> Tables:
    return Tables({entity.changeset: "changeset"}, {QUARANTINE: quarantine_process}, by_day=True)


@dataclass(frozen=True)
class EntityParts:
    """Everything of one entity."""

    entity: Entity
    """For names and tables, which do not depend on policies."""
    topic_key: dg.AssetKey
    declared: Callable[[Settings], DeclaredEntity]
    """The entity and its topic, under the policies of the settings."""

    @cached_property
    def changes(self) -> Ingestion:
        entity = self.entity
        return Ingestion(
            job=entity.ingest_job,
            asset_name=f"ingest_{entity.name}_changeset",
            specs=[table_spec(entity.changeset, [self.topic_key], entity.name)],
            # One pool each: while the base is written, changes go on landing.
            pool=f"{entity.name}_changeset",
            tables=changeset_tables(entity),
            declared=self.declared,
            description=f"Partial updates from Kafka, one partition a batch; each is visible in {entity.view} with its "
            "commit. A day before today is read again: readers see a difference only where something had not landed.",
            reread=lambda day, parts: reread(day, parts, self.declared(parts.settings)),
        )

    @cached_property
    def moves(self) -> Drain:
        return Drain(
            job=self.entity.rematerialize_job,
            pool=f"{self.entity.name}_materialized",
            tables=Tables({self.entity.base: "base"}, {self.entity.changeset: "changeset"}, always=True),
            declared=self.declared,
        )

    @cached_property
    def base_asset(self) -> dg.AssetsDefinition:
        entity = self.entity

        @dg.multi_asset(
            name=f"rematerialize_{entity.name}_base",
            specs=[table_spec(entity.base, [key_of(entity.changeset)], entity.name)],
            pool=self.moves.pool,
            retry_policy=TRIED_AGAIN,
            description="All changes that wait, moved into the base; readers see no difference.",
        )
        def base(context: dg.AssetExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
            context.log.info(f"Moving changes: {context.run.tags.get(WHY, 'launched by hand')}")
            self.moves.run(context, platform, once=True)
            # A plain function's None would be one more materialization, without figures.
            yield from ()

        return base

    def changes_pressing(self, context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
        """A rematerialization where limits are passed; an observation of the view where its tables have changed."""
        looked = waiting(settings)
        found, waits = self._waits(looked)
        if found and waits and context.cursor != (cursor := f"{found.base_version} {found.changeset_version}"):
            # A view stores nothing, so nothing materializes it. The UI draws the figures over time.
            shown = {"pending_rows": waits.pending_rows, "point_read_s": waits.point_read_s}
            metadata = {name: figure for name, figure in shown.items() if figure is not None}
            seen = dg.AssetObservation(self.entity.view.split("/"), metadata=metadata)
            context.instance.report_runless_asset_event(seen)
            context.update_cursor(cursor)
        return self.move_request(context.instance, looked, waits, by_cadence=False)

    def moves_by_cadence(
        self, context: dg.ScheduleEvaluationContext, settings: Settings
    ) -> dg.RunRequest | dg.SkipReason:
        looked = waiting(settings)
        return self.move_request(context.instance, looked, self._waits(looked)[1], by_cadence=True)

    def _waits(self, looked: Waiting) -> tuple[Snapshot | None, Waits | None]:
        """What readers see of base and changeset, and what waits; None before they are made. Reads one key."""
        entity = self.declared(looked.settings).entity
        found, last = state_of(entity, looked.settings), looked.checkpoint(self.moves.job)
        if found is None:
            return None, None
        # The base first: what a first look at its files costs would else count as time of the changes.
        of_base = base_read_seconds(looked.settings.lake, entity) if found.pending else None
        seconds = point_read_seconds(looked.settings.lake, entity) if found.pending else None
        ingested = last.manifest.ingestion_ts if last else None
        return found, Waits(found.pending_rows, len(found.orphans), seconds, ingested, of_base or 0.0)

    def move_request(
        self, instance: dg.DagsterInstance, looked: Waiting, waits: Waits | None, *, by_cadence: bool
    ) -> dg.RunRequest | dg.SkipReason:
        """One look: a run with its reason, or why not. by_cadence: also when nothing presses. waits: None before the
        tables are made."""
        if waits is None:
            return dg.SkipReason("No change has landed yet.")
        settings, last = looked.settings.rematerialize, looked.checkpoint(self.moves.job)
        if last is not None and last.state is not JobState.SUCCEEDED:
            why: str | None = f"{last.manifest} is unfinished"
        elif by_cadence:
            is_due, reason = due(waits, datetime.now(UTC), settings)
            why = reason if is_due else None
        else:
            why, reason = pressing(waits, settings), f"{waits.pending_rows:,} changes wait, within all limits."
        if why is None:
            return dg.SkipReason(reason)
        recent = recent_runs(instance, self.moves.dagster_job, self.base_asset)
        if no := why_not(max(1, waits.pending_rows), recent, time.time()):
            return dg.SkipReason(f"{why}. {no}")
        return dg.RunRequest(tags={WHY: why})

    def results(self, looked: Waiting) -> list[dg.AssetCheckResult]:
        declared = self.declared(looked.settings)
        return entity_results(declared.entity, looked, declared.topic)

    def definitions(self) -> dg.Definitions:
        entity, name = self.entity, self.entity.name
        move_job = dg.define_asset_job(
            self.moves.dagster_job,
            selection=dg.AssetSelection.assets(self.base_asset).without_checks(),
            description="Move changes that wait into the base. Readers see no difference.",
            tags=UNBOUNDED,
            executor_def=dg.in_process_executor,
        )
        backlog = backlog_sensor(
            f"{name}_changes_backlog",
            self.changes,
            f"changes of {name}s wait on the broker",
            in_shared=self is PROFILES,
        )
        presses = sensor(
            f"{name}_changes_pressing",
            self.changes_pressing,
            "Moves changes into the base when too many wait, when reading through them has become slow, and when a run "
            "was interrupted.",
            job=self.moves.dagster_job,
            every=30,
        )
        watch = watched(
            f"watch_{name}_tables",
            checks_of(entity),
            self.results,
            f"watch_{name}s",
            f"Reports the checks of {name}s: freshness, size of the changeset, watermark.",
        )
        by_cadence = schedule(
            self.moves.dagster_job,
            "* * * * *",
            "Moves changes into the base at the cadence of the settings (rematerialize.cadence); skipped until then.",
            name=f"rematerialize_{name}_by_cadence",
            look=self.moves_by_cadence,
        )
        shows = f"{name.capitalize()}s as they are now: the base with the changes that wait."
        own = dg.Definitions(
            assets=[
                self.changes.assets,
                self.base_asset,
                view_spec(entity.view, [entity.base, entity.changeset], name, shows),
            ],
            jobs=[self.changes.asset_job(f"Drain new changes of {name}s."), move_job],
            sensors=[backlog, presses],
            schedules=[by_cadence],
        )
        return dg.Definitions.merge(own, watch)


PROFILES = EntityParts(PROFILE, PROFILE_CHANGES_TOPIC, shipped_entity)
"""The entity that ships, under the policies of the settings."""
