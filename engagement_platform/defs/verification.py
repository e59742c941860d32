"""Asset checks that read the tables, evaluated together as one job, and the sensor that launches it after batches.

`maintenance.verify` and `maintenance.guards.rules` decide what is right; `checks` has the checks that need no run.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime

import dagster as dg

from engagement_platform.defs.backlog import waiting
from engagement_platform.defs.batches import rows_table
from engagement_platform.defs.evaluations import ERROR, WARN, cannot_tell, check_result, newest_results, selected
from engagement_platform.defs.ingestion import UNBOUNDED
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.sensors import Answer, Recent, recent_runs, sensor, too_soon
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import Stores
from engagement_platform.errors import PlatformError
from engagement_platform.lake import log
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.maintenance.guards.rules import broken, guards
from engagement_platform.maintenance.verify.finding import Finding
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.pipelines.status import succeeded
from engagement_platform.settings import Settings

DATA, NAMES, NOTIFIED, REJECTED, ALIASES = map(key_of, (DATA_TABLE, MAPPING, NOTIFICATION, QUARANTINE, ALIAS))

GUARDS_KEPT = "guards_kept"
GUARDS_SAY = (
    "Nobody but our jobs writes, and tables and streams are as `engagement-platform doctor --guards` wants them."
)

VERIFY_AFTER_S = 180.0
"""After the first batch: until then a new Spark server compiles each plan for the first time, with all of two cores."""
VERIFY_PAUSE_S = 900.0
VERIFY_PAUSE_PER_DURATION = 10
"""Verification reads whole tables, so it takes longer as they grow; at most a tenth of the time goes into it."""

SAMPLED_ORGANIZATIONS = 20
"""Organizations that one verification looks at; others every day, so all get their turn, and the same ones until they
are right."""
SAMPLED = frozenset({"identity", "contents", "names", "accepted_once"})
"""Checks that look at those."""
SAMPLED_ON = "sampled_on"

TABLE_CHECKS: Mapping[tuple[dg.AssetKey, str], tuple[Sequence[str], str]] = {
    (DATA, "unique_engagement_id"): (("doubled",), "Every engagement is there once."),
    (DATA, "nothing_lost"): (
        ("ledger", "lost"),
        "Each batch begins where the one before ended, and every accepted message of the topic is in the table.",
    ),
    (DATA, "identity"): (
        ("identity",),
        "Each row of some organizations has the identity that follows from its event and all aliases.",
    ),
    (DATA, "contents"): (
        ("contents",),
        "Each patched row of some organizations is its event with all patches in their order.",
    ),
    (NAMES, "names"): (("names",), "Each person of some organizations has the newest name."),
    (ALIASES, "accepted_once"): (
        ("accepted_once",),
        "Every accepted request of some organizations is among the aliases once.",
    ),
    (NOTIFIED, "announced"): (
        ("announced", "notified_twice"),
        "Every engagement that landed was announced once, and nothing else was.",
    ),
    (REJECTED, "rejected_once"): (
        ("vanished", "quarantined_twice"),
        "Every rejected record is in quarantine, once.",
    ),
}
"""(asset, check) -> the findings of `verify` that decide it, and what it says."""

OF_PERSONS = frozenset({"names"})
"""Findings whose examples are persons: what Dagster keeps, and what goes out as an alert, is beyond any erasure."""
SEE = "; `engagement-platform verify --identity` lists some"


def table_check_results(
    findings: Sequence[Finding], landed: Collection[dg.AssetKey], day: date | None = None
) -> list[dg.AssetCheckResult]:
    """One result a check, which fails also when a finding that decides it is missing.

    landed: tables that something has landed in. In the others a finding may be missing: there is nothing to look at.
    day: whose sample of organizations was looked at.
    """
    found = {finding.check: finding for finding in findings}
    results = []
    for (asset, check), (names, _says) in TABLE_CHECKS.items():
        own = [found[name] for name in names if name in found]
        unknown = [
            f"Nobody can tell: {name} was not looked for, though something has landed"
            for name in names
            if name not in found and asset in landed
        ]
        wrong = [
            f"{finding.wrong:,} of {finding.looked_at:,} break the rule that {finding.meaning}"
            + (SEE if finding.check in OF_PERSONS else f", such as {', '.join(finding.examples)}")
            for finding in own
            if finding.wrong
        ]
        shown = {
            "looked_at": max((finding.looked_at for finding in own), default=0),
            "wrong": sum(finding.wrong for finding in own),
            **({SAMPLED_ON: day.isoformat()} if day is not None and check in SAMPLED else {}),
        }
        # What nobody looked at may be right.
        severity = ERROR if wrong or not unknown else WARN
        results.append(check_result(asset, check, "; ".join([*wrong, *unknown]), shown, severity=severity))
    return results


def guards_kept(settings: Settings, stores: Stores) -> dg.AssetCheckResult:
    """Passed when no rule is broken; otherwise says which, by what one sees it, and what to do. Reads no data."""
    try:
        found = guards(settings, stores)
    except PlatformError as error:
        return cannot_tell(DATA, GUARDS_KEPT, error)
    wrong = [f"{guard.rule.says} But: {guard.seen}. {guard.rule.do}" for guard in broken(found)]
    rows = [{"rule": guard.rule.code, "state": guard.state, "seen": guard.seen} for guard in found]
    return check_result(DATA, GUARDS_KEPT, " ".join(wrong), {"each": rows_table(rows)}, severity=WARN)


@dg.multi_asset_check(
    name="verify_tables",
    can_subset=True,
    specs=[
        *(
            dg.AssetCheckSpec(check, asset=asset, description=says)
            for (asset, check), (_, says) in TABLE_CHECKS.items()
        ),
        dg.AssetCheckSpec(GUARDS_KEPT, asset=DATA, description=GUARDS_SAY),
    ],
)
def verify_tables(context: dg.AssetCheckExecutionContext, platform: Platform) -> Iterator[dg.AssetCheckResult]:
    """Read the topic again and compare it with the tables. Reads keys of the whole Data Table once."""
    with platform.open("verify") as opened:
        # Before the findings: the first batch may finish while they are looked for.
        landed, day = landed_in(opened.settings, opened.stores), sample_day(context.instance)
        results = table_check_results(findings_of(opened, day), landed, day)
        yield from selected(context, [*results, guards_kept(opened.settings, opened.stores)])


def sample_day(instance: dg.DagsterInstance) -> date:
    """The day whose sample is looked at: today, or that of the oldest of the newest results that is not right.

    Another sample would pass, and take back the alert of what is wrong still.
    """
    checks = [dg.AssetCheckKey(asset, check) for asset, check in TABLE_CHECKS if check in SAMPLED]
    wrong = [one.evaluation for one in newest_results(instance, checks).values() if not one.evaluation.passed]
    days = [str(one.metadata[SAMPLED_ON].value) for one in wrong if SAMPLED_ON in one.metadata]
    return min(map(date.fromisoformat, days), default=datetime.now(UTC).date())


def landed_in(settings: Settings, stores: Stores) -> set[dg.AssetKey]:
    """Tables with checks of this module in which there is something to look at.

    Those of engagements after a finished batch of them, also one from before a reset; aliases once there is one.
    """
    # The newest may be under way. A batch fills all of its tables, or says that it had nothing for some.
    ingested = succeeded(stores.checkpoints.history(INGEST_ENGAGEMENTS, limit=2))
    aliases = log.open_log(ALIAS.uri(settings.lake))
    return {
        *((asset for asset, _ in TABLE_CHECKS if asset != ALIASES) if ingested else ()),
        *([ALIASES] if aliases is not None and aliases.file_uris() else []),
    }


def findings_of(opened: Opened, day: date) -> list[Finding]:
    """All that verification finds; identities and aliases of the sample of a day, so that it stays short."""
    from engagement_platform.maintenance.verify.identity import identity_findings
    from engagement_platform.maintenance.verify.messages import verify

    settings, spark = opened.settings, opened.spark
    return [*verify(settings, spark), *identity_findings(settings, spark, SAMPLED_ORGANIZATIONS, day)]


verify_engagements = dg.define_asset_job(
    "verify_engagements",
    selection=dg.AssetSelection.checks(*verify_tables.check_keys),
    description="Compare the tables with the topic: nothing lost, nothing doubled, all announced. Changes nothing.",
    tags=UNBOUNDED,
    executor_def=dg.in_process_executor,
)


def why_not_verified(
    last_batch: float | None, first_batch: float | None, materialized: float | None, recent: Recent, now: float
) -> str | None:
    """Why no verification is launched now; None when one is.

    Unix times. last_batch: when the newest batch finished. first_batch: when the very first did; None: long ago.
    materialized: the newest time of the Data Table.
    """
    if last_batch is None:
        return "No batch has finished yet."
    if recent.created is None and (left := (first_batch or 0.0) + VERIFY_AFTER_S - now) > 0:
        return f"The first batch has just finished; the first verification is in {left:.0f} s."
    # One that failed, or was canceled, has verified nothing.
    unevaluated = materialized is not None and materialized > (recent.succeeded or now)
    if recent.succeeded is not None and last_batch < recent.succeeded and not unevaluated:
        return "No batch has finished since the last verification."
    took = (recent.ended or 0.0) - (recent.started or recent.ended or 0.0)
    return too_soon(recent, now, max(VERIFY_PAUSE_S, took * VERIFY_PAUSE_PER_DURATION))


def verify_after_batches(context: dg.SensorEvaluationContext, settings: Settings) -> Answer:
    """New batches of engagements or mutations since the last verification, or a new materialization."""
    history = waiting(settings).stores.checkpoints.history
    engagements, announcements = history(INGEST_ENGAGEMENTS, limit=20), history(APPLY_MUTATIONS, limit=3)
    done = [(r, r.finished_ts.timestamp()) for r in (*engagements, *announcements) if r.finished_ts and not r.reason]
    first = [at for record, at in done if record.manifest.job == INGEST_ENGAGEMENTS and record.manifest.batch_id == 0]
    event = context.instance.get_latest_materialization_event(DATA)
    reason = why_not_verified(
        max((at for _, at in done), default=None),
        max(first, default=None),
        event.timestamp if event else None,
        recent_runs(context.instance, verify_engagements.name),
        time.time(),
    )
    return dg.SkipReason(reason) if reason else dg.RunRequest()


def definitions() -> dg.Definitions:
    after_batches = sensor(
        "verify_after_batches",
        verify_after_batches,
        "Checks the tables against the topic after new batches or a materialization, at most every fifteen minutes, or "
        "ten times what that took; never when idle.",
        job=verify_engagements.name,
    )
    return dg.Definitions(asset_checks=[verify_tables], jobs=[verify_engagements], sensors=[after_batches])
