"""Asset checks that read the tables, evaluated together as one job, and the sensor that launches it after batches.

`verify` and `guards.rules` decide what is right; `checks` has the checks that need no run.
"""

# No `from __future__ import annotations` beside Dagster's decorators.

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from engagement_platform.defs.backlog import waiting
from engagement_platform.defs.checks import selected
from engagement_platform.defs.mutation_checks import SAMPLED_ORGANIZATIONS, chain_findings
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.engine.job import Stores
from engagement_platform.errors import PlatformError
from engagement_platform.guards.rules import Guard, broken, guards
from engagement_platform.lake import log
from engagement_platform.lake.engagement import ALIAS, MAPPING, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import Settings
from engagement_platform.status import succeeded
from engagement_platform.verify import Finding

DATA, NAMES, NOTIFIED, REJECTED, ALIASES = map(key_of, (DATA_TABLE, MAPPING, NOTIFICATION, QUARANTINE, ALIAS))

GUARDS_KEPT = "guards_kept"
GUARDS_SAY = (
    "Nobody but our jobs writes, and tables and streams are as `engagement-platform doctor --guards` wants them."
)

VERIFY_AT_MOST_EVERY = timedelta(minutes=2)
# Verification reads whole tables, so it takes longer as they grow; at most a tenth of the time goes into it.
VERIFY_PAUSE_PER_DURATION = 10

TABLE_CHECKS: Mapping[tuple[dg.AssetKey, str], tuple[Sequence[str], str]] = {
    (DATA, "unique_engagement_id"): (("doubled",), "Every engagement stands once."),
    (DATA, "nothing_lost"): (
        ("ledger", "lost"),
        "Each batch begins where the one before ended, and every accepted message of the topic is in the table.",
    ),
    (DATA, "identity"): (
        ("identity",),
        "Each row of some organizations has the identity that follows from what its event said and all aliases.",
    ),
    (DATA, "contents"): (
        ("contents",),
        "Each patched row of some organizations is what its event said with all patches in their order.",
    ),
    (NAMES, "names"): (("names",), "Each person of some organizations has the newest name that was said."),
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
        "Every rejected record stands in quarantine, once.",
    ),
}
"""(asset, check) -> the findings of `verify` that decide it, and what it says."""

OF_PERSONS = frozenset({"names"})
"""Findings whose examples are persons: what Dagster keeps, and what goes out as an alert, is beyond any erasure."""
SEE = "; `engagement-platform verify --identity` lists some"


def table_check_results(findings: Sequence[Finding], landed: Collection[dg.AssetKey]) -> list[dg.AssetCheckResult]:
    """One result a check, which fails also when a finding that decides it is missing.

    landed: tables that something has landed in. In the others a finding may be missing: there is nothing to look at.
    """
    found = {finding.check: finding for finding in findings}
    return [
        _table_check_result(
            asset,
            check,
            [found[name] for name in names if name in found],
            [name for name in names if name not in found and asset in landed],
        )
        for (asset, check), (names, _says) in TABLE_CHECKS.items()
    ]


def _table_check_result(
    asset: dg.AssetKey, check: str, findings: Sequence[Finding], missing: Sequence[str]
) -> dg.AssetCheckResult:
    unknown = [f"Nobody can tell: {name} was not looked for, though something has landed" for name in missing]
    wrong = [
        f"{finding.wrong:,} of {finding.looked_at:,} break the rule that {finding.meaning}"
        + (SEE if finding.check in OF_PERSONS else f", such as {', '.join(finding.examples)}")
        for finding in findings
        if finding.wrong
    ]
    return dg.AssetCheckResult(
        passed=not wrong and not unknown,
        asset_key=asset,
        check_name=check,
        # What nobody looked at may be right.
        severity=dg.AssetCheckSeverity.ERROR if wrong or not unknown else dg.AssetCheckSeverity.WARN,
        description="; ".join([*wrong, *unknown]) or None,
        metadata={
            "looked_at": max((finding.looked_at for finding in findings), default=0),
            "wrong": sum(finding.wrong for finding in findings),
        },
    )


def guards_kept(settings: Settings, stores: Stores) -> dg.AssetCheckResult:
    """The check as it stands now. Reads logs and stores, no data; a warning where a rule cannot be looked at."""
    try:
        return guards_result(guards(settings, stores))
    except PlatformError as error:
        return _result(False, f"Nobody can tell: {error}", {})


def guards_result(found: Sequence[Guard]) -> dg.AssetCheckResult:
    """Passed when no rule is broken; otherwise says which, by what one sees it, and what to do."""
    wrong = [f"{guard.says} But: {guard.seen}. {guard.do}" for guard in broken(found)]
    columns = [dg.TableColumn(name) for name in ("rule", "state", "seen")]
    records = [dg.TableRecord({"rule": guard.code, "state": guard.state, "seen": guard.seen}) for guard in found]
    each = dg.MetadataValue.table(records, dg.TableSchema(columns))
    return _result(not wrong, " ".join(wrong) or None, {"each": each})


def _result(passed: bool, said: str | None, shown: dict[str, dg.MetadataValue]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=DATA,
        check_name=GUARDS_KEPT,
        severity=dg.AssetCheckSeverity.WARN,
        description=said,
        metadata=shown,
    )


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
        yield from selected(context, results_of(opened))


def results_of(opened: Opened) -> list[dg.AssetCheckResult]:
    """Everything that verification decides, as it is now."""
    # Before the findings: the first batch may finish while they are looked for.
    landed = landed_in(opened.settings, opened.stores)
    return [*table_check_results(findings_of(opened), landed), guards_kept(opened.settings, opened.stores)]


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


def findings_of(opened: Opened) -> list[Finding]:
    """All that verification finds; identities and aliases of so many organizations that it stays short."""
    from engagement_platform.lake.lake import Lake
    from engagement_platform.verify import identity_findings, verify

    settings, spark = opened.settings, opened.spark
    return [
        *verify(settings, spark),
        *identity_findings(settings, spark, sample=SAMPLED_ORGANIZATIONS),
        *chain_findings(Lake(spark, settings)),
    ]


verify_engagements = dg.define_asset_job(
    "verify_engagements",
    selection=dg.AssetSelection.checks(*verify_tables.check_keys),
    description="Compare the tables with the topic: nothing lost, nothing doubled, all announced. Changes nothing.",
    executor_def=dg.in_process_executor,
)


@dataclass(frozen=True)
class Verified:
    """The newest verification run: Unix times of its creation, start and end; None where that did not happen yet."""

    created: float
    started: float | None
    ended: float | None


def verification_due(last_batch: float | None, verified: Verified | None, now: float) -> str | None:
    """Why no verification is launched now; None when one is. last_batch: when the newest batch finished."""
    if last_batch is None:
        return "No batch has finished yet."
    if verified is None:
        return None
    if verified.ended is None:
        return "A verification is under way."
    if last_batch < verified.created:
        return "No batch has finished since the last verification."
    took = verified.ended - (verified.started or verified.ended)
    pause = max(VERIFY_AT_MOST_EVERY.total_seconds(), took * VERIFY_PAUSE_PER_DURATION)
    left = verified.ended + pause - now
    return f"The last verification took {took:.0f} s; the next begins in {left:.0f} s." if left > 0 else None


def last_verified(instance: dg.DagsterInstance) -> Verified | None:
    """The newest run of verify_engagements."""
    for record in instance.get_run_records(dg.RunsFilter(job_name=verify_engagements.name), limit=1):
        return Verified(record.create_timestamp.timestamp(), record.start_time, record.end_time)
    return None


@dg.sensor(
    job=verify_engagements, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING,
    description="Checks the tables against the topic after new batches: at most every two minutes, never when idle.",
)  # fmt: skip
def verify_after_batches(context: dg.SensorEvaluationContext, platform: Platform) -> dg.RunRequest | dg.SkipReason:
    """New batches of engagements or mutations since the last verification, or a new materialization.

    Before the newest materialization of the Data Table Dagster's UI does not show a result any more.
    """
    history = waiting(platform.settings()).stores.checkpoints.history
    records = [record for job in (INGEST_ENGAGEMENTS, APPLY_MUTATIONS) for record in history(job, limit=3)]
    finished = [r.finished_ts.timestamp() for r in records if r.finished_ts and not r.reason]
    if finished and (event := context.instance.get_latest_materialization_event(DATA)):
        finished.append(event.timestamp)
    reason = verification_due(max(finished, default=None), last_verified(context.instance), time.time())
    return dg.SkipReason(reason) if reason else dg.RunRequest()


def definitions() -> dg.Definitions:
    """Checks, job and sensor of this module."""
    return dg.Definitions(asset_checks=[verify_tables], jobs=[verify_engagements], sensors=[verify_after_batches])
