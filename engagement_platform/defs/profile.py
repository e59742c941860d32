"""Profiles as assets: the changeset that a drain run appends to, the base, the view, and what watches over them.

What a batch does is `merge_on_read/`; when the base is written, and why, is `merge_on_read/cadence`.
"""

# No `from __future__ import annotations` beside Dagster's decorators: they read a Config class from the annotation.

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg

from engagement_platform.defs.checks import FRESH, freshness, selected
from engagement_platform.defs.engagement import (
    IngestConfig,
    Ingestion,
    conservation_spec,
    ingest,
    with_conservation,
)
from engagement_platform.defs.evaluations import carry_over, report
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.profiled import changes_metadata, moved_metadata
from engagement_platform.defs.rematerialize import moved_batches
from engagement_platform.defs.sensors import drain_request, recent_runs, to_report, why_not
from engagement_platform.defs.specs import DAYS, PROFILE_CHANGES_TOPIC, key_of, profile_view_spec, table_spec
from engagement_platform.defs.telling import Tables, tell, told_of
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.jobs import INGEST_PROFILE_CHANGES, REMATERIALIZE_PROFILE
from engagement_platform.merge_on_read.cadence import Waits, due, pressing
from engagement_platform.merge_on_read.entity import PROFILE, profile
from engagement_platform.merge_on_read.latency import point_read_seconds
from engagement_platform.merge_on_read.rematerialize import known_rounds
from engagement_platform.merge_on_read.sample import sample
from engagement_platform.merge_on_read.snapshot import Snapshot, snapshot
from engagement_platform.microbatch.model import JobState
from engagement_platform.settings import Settings
from engagement_platform.sources.kafka_errors import TopicMissing
from engagement_platform.tables import log
from engagement_platform.tables.engagement import QUARANTINE

# One pool each: while the base is written, changes go on landing.
CHANGESET_POOL = "profile_changeset"
BASE_POOL = "profile_materialized"

WHY = "engagement_platform/why"
"""Tag of a run that says why it was launched."""

CHANGESET, BASE = key_of(PROFILE.changeset), key_of(PROFILE.base)
SIZE, WATERMARK, REPLAY = "changeset_size", "watermark", "view_equals_replay"

CHANGES = Ingestion(
    INGEST_PROFILE_CHANGES,
    Tables({PROFILE.changeset: "changeset"}, {QUARANTINE: "quarantine"}, changes_metadata),
    PROFILE.changeset,
    (dg.AssetCheckKey(CHANGESET, FRESH), dg.AssetCheckKey(CHANGESET, SIZE)),
)
MOVED = Tables({PROFILE.base: "base"}, {PROFILE.changeset: "changeset"}, moved_metadata, always=True)
BASE_CHECKS = (dg.AssetCheckKey(BASE, WATERMARK), dg.AssetCheckKey(BASE, REPLAY))


@dg.multi_asset(
    name="ingest_profile_changeset",
    specs=[table_spec(PROFILE.changeset, [PROFILE_CHANGES_TOPIC])],
    check_specs=[conservation_spec(PROFILE.changeset)],
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=CHANGESET_POOL,
)
def profile_changeset(
    context: dg.AssetExecutionContext, config: IngestConfig, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Partial updates from Kafka, one partition a batch; each is visible in profile/current with its commit."""
    yield from ingest(CHANGES, context, config.mode, platform)


@dg.multi_asset(
    name="rematerialize_profile_base",
    specs=[table_spec(PROFILE.base, [CHANGESET])],
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=BASE_POOL,
)
def profile_base(context: dg.AssetExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
    """All changes that wait, moved into the base; readers see no difference. Its partition is the day of the run."""
    context.log.info(f"Moving changes: {context.run.tags.get(WHY, 'launched by hand')}")
    with platform.open(REMATERIALIZE_PROFILE) as opened:
        done = tell(context, MOVED, opened, moved_batches(opened, told_of(context), REMATERIALIZE_PROFILE))
        for number, _report in enumerate(done):
            if number == 0:
                carry_over(context, BASE_CHECKS)
    # Each batch was told as it ended; a plain function's None would be one more materialization, without figures.
    yield from ()


ingest_profile_changes = dg.define_asset_job(
    "ingest_profile_changes",
    selection=with_conservation(profile_changeset),
    description="Drain new changes of profiles.",
)
rematerialize_profile = dg.define_asset_job(
    "rematerialize_profile",
    selection=dg.AssetSelection.assets(profile_base).without_checks(),
    description="Move changes that wait into the base. Readers see no difference.",
)


@dg.sensor(
    job=ingest_profile_changes, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches a drain run when changes of profiles wait on the broker and none is under way.",
)  # fmt: skip
def profile_changes_backlog(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """Changes on the broker against the checkpoint."""
    return drain_request(INGEST_PROFILE_CHANGES, profile_changeset, waiting(platform.settings()), context)


def state_of(settings: Settings) -> Snapshot | None:
    """Where base and changeset stand; None before they are made."""
    tables = (PROFILE.changeset, PROFILE.base)
    if any(log.version(table.uri(settings.lake)) is None for table in tables):
        return None
    return snapshot(settings.lake, PROFILE)


def waits_of(looked: Waiting, found: Snapshot) -> Waits:
    """What a decision about rematerialization is made of. Reads one key of the view."""
    last = looked.checkpoint(REMATERIALIZE_PROFILE)
    seconds = point_read_seconds(looked.settings.lake, profile(looked.settings)) if found.pending else None
    return Waits(found.pending_rows, len(found.orphans), seconds, last.manifest.ingestion_ts if last else None)


def move_request(instance: dg.DagsterInstance, looked: Waiting, *, by_cadence: bool) -> dg.RunRequest | dg.SkipReason:
    """One look: a run with its reason, or why not. by_cadence: also when nothing presses."""
    last, found = looked.checkpoint(REMATERIALIZE_PROFILE), state_of(looked.settings)
    if found is None:
        return dg.SkipReason("No change has landed yet.")
    settings, waits = looked.settings.rematerialize, waits_of(looked, found)
    if last is not None and last.state is not JobState.SUCCEEDED:
        why: str | None = f"{last.manifest} is unfinished"
    elif by_cadence:
        is_due, said = due(waits, known_rounds(looked.stores, PROFILE), datetime.now(UTC), settings)
        why = said if is_due else None
    else:
        why, said = pressing(waits, settings), f"{waits.pending_rows:,} changes wait, within all limits."
    if why is None:
        return dg.SkipReason(said)
    if no := why_not(
        max(1, waits.pending_rows), recent_runs(instance, "rematerialize_profile", profile_base), time.time()
    ):
        return dg.SkipReason(f"{why}. {no}")
    today = datetime.now(UTC).date().isoformat()
    return dg.RunRequest(partition_key=today if DAYS.has_partition_key(today) else None, tags={WHY: why})


@dg.sensor(
    job=rematerialize_profile, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Moves changes into the base when too many wait, when reading through them has become slow, and when a "
    "run was interrupted.",
)  # fmt: skip
def profile_changes_pressing(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """Size of the changeset and the latency of the view against their limits."""
    return move_request(context.instance, waiting(platform.settings()), by_cadence=False)


@dg.schedule(
    job=rematerialize_profile, cron_schedule="* * * * *", execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Moves changes into the base at the cadence that costs least (rematerialize.cadence); skipped until "
    "that is reached, with the reasoning.",
)  # fmt: skip
def rematerialize_profile_by_cadence(
    context: dg.ScheduleEvaluationContext, platform: Platform
) -> dg.RunRequest | dg.SkipReason:
    """What waits, and what the last rounds cost."""
    return move_request(context.instance, waiting(platform.settings()), by_cadence=True)


def size_result(found: Snapshot | None, most: int) -> dg.AssetCheckResult:
    """Passed when at most `most` changes wait."""
    rows = found.pending_rows if found else 0
    return dg.AssetCheckResult(
        passed=rows <= most,
        asset_key=CHANGESET,
        check_name=SIZE,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{rows:,} changes wait, more than rematerialize.max_pending_rows ({most:,}). Look at the last "
        "runs of rematerialize_profile." if rows > most else None,
        metadata={"pending_rows": rows, "pending_batches": len(found.pending) if found else 0},
    )  # fmt: skip


def watermark_result(found: Snapshot | None, under_way: bool, told: int | None) -> dg.AssetCheckResult:
    """Passed when no batch is in both tables, but for a rematerialization under way, and the base's watermark is not
    behind the one that the stores tell of. told: watermark of the last finished batch."""
    orphans = found.orphans if found and not under_way else []
    behind = found is not None and told is not None and found.watermark < told
    wrong = (
        [f"Batches {orphans[:5]} are in base and changeset; the next rematerialization removes them"] if orphans else []
    )
    if behind and found is not None:
        wrong.append(
            f"the base says it has all changes up to batch {found.watermark}, the stores say up to {told}: it was put "
            "back to an earlier version, and what was merged since is lost to readers; restore its newest version"
        )
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=BASE,
        check_name=WATERMARK,
        description="; ".join(wrong) or None,
        metadata={"watermark": found.watermark if found else -1, "orphan_batches": len(orphans)},
    )


def replay_result(settings: Settings, found: Snapshot | None) -> dg.AssetCheckResult:
    """Passed when the view shows some keys as a replay of their changes ends."""
    looked = sample(settings.lake, profile(settings)) if found else None
    differing = looked.differing if looked else ()
    return dg.AssetCheckResult(
        passed=not differing,
        asset_key=BASE,
        check_name=REPLAY,
        description=f"{len(differing)} keys are shown otherwise than their changes say, such as "
        f"{', '.join(differing[:5])}. This is a defect: please report it." if differing else None,
        metadata={"keys": looked.keys if looked else 0, "differing": len(differing)},
    )  # fmt: skip


def profile_results(looked: Waiting) -> list[dg.AssetCheckResult]:
    """All checks of profiles that need no run, as they stand now."""
    settings, last = looked.settings, looked.checkpoint(REMATERIALIZE_PROFILE)
    found = state_of(settings)
    done = last is None or last.state is JobState.SUCCEEDED
    told = last.manifest.end["batch"] if last is not None and done else None
    results = [
        size_result(found, settings.rematerialize.max_pending_rows),
        watermark_result(found, not done, told),
        replay_result(settings, found),
    ]
    return [*_fresh(looked), *results]


def _fresh(looked: Waiting) -> list[dg.AssetCheckResult]:
    """Who has no profiles has no topic for them, and nothing to be told of."""
    if looked.checkpoint(INGEST_PROFILE_CHANGES) is None:
        try:
            looked.backlog(INGEST_PROFILE_CHANGES)
        except TopicMissing:
            return [dg.AssetCheckResult(passed=True, asset_key=CHANGESET, check_name=FRESH, description="No topic.")]
    return [freshness(INGEST_PROFILE_CHANGES, CHANGESET, looked)]


@dg.multi_asset_check(
    name="watch_profile_tables",
    can_subset=True,
    specs=[
        dg.AssetCheckSpec(FRESH, asset=CHANGESET, description="No change waits longer than `quality.freshness`."),
        dg.AssetCheckSpec(SIZE, asset=CHANGESET, description="At most `rematerialize.max_pending_rows` changes wait."),
        dg.AssetCheckSpec(
            WATERMARK, asset=BASE, description="The base's watermark is where it was left; no batch is in both tables.",
        ),
        dg.AssetCheckSpec(
            REPLAY, asset=BASE, description="The view shows some keys of the newest batch as a replay of them ends.",
        ),
    ],
)  # fmt: skip
def watch_profile_tables(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
    """From logs, stores, broker and a few rows; the sensor `watch_profiles` reports the same without a run."""
    yield from selected(context, profile_results(waiting(platform.settings())))


@dg.sensor(
    minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports the checks of profiles: freshness, size of the changeset, watermark, view against a replay.",
)  # fmt: skip
def watch_profiles(context: dg.SensorEvaluationContext, platform: Platform) -> dg.SkipReason:
    """What `watch_profile_tables` finds."""
    news, cursor = to_report(profile_results(waiting(platform.settings())), context.cursor, time.time())
    report(context.instance, news)
    context.update_cursor(cursor)
    return dg.SkipReason(f"Reported {len(news)} checks." if news else "Nothing has changed.")


def definitions() -> dg.Definitions:
    """Assets, jobs, checks, sensors and schedule of this module."""
    return dg.Definitions(
        assets=[profile_changeset, profile_base, profile_view_spec()],
        jobs=[ingest_profile_changes, rematerialize_profile],
        asset_checks=[watch_profile_tables],
        sensors=[profile_changes_backlog, profile_changes_pressing, watch_profiles],
        schedules=[rematerialize_profile_by_cadence],
    )
