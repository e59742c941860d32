"""Asset checks: those that read the tables run together as one job, those that need no Spark are reported by a sensor.

What is right is decided in `verify` and by the pure functions here. Conservation comes with the runs: `engagement`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from engagement_platform.defs.consumers import CONSUMERS_KEEP_UP, keep_up
from engagement_platform.defs.evaluations import report
from engagement_platform.defs.guarded import GUARDS_KEPT, SAYS, guards_kept
from engagement_platform.defs.mutated import (
    ANNOUNCED_BATCHES,
    SAMPLED_ORGANIZATIONS,
    Announced,
    announced_rows,
    chain_findings,
    not_announced,
)
from engagement_platform.defs.platform import Opened, Platform
from engagement_platform.defs.specs import DATA_TABLE, key_of
from engagement_platform.defs.waiting import Waiting, waiting
from engagement_platform.engine.job import Stores
from engagement_platform.errors import PlatformError
from engagement_platform.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, JOB_NAMES
from engagement_platform.lake import log
from engagement_platform.lake.engagement import ALIAS, MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import Settings
from engagement_platform.status import Waiting as Pending
from engagement_platform.status import pending_changes, succeeded, summed
from engagement_platform.verify import Finding

DATA, NAMES, NOTIFIED, REQUESTS, REJECTED, ALIASES = map(
    key_of, (DATA_TABLE, MAPPING, NOTIFICATION, MUTATION_REQUEST, QUARANTINE, ALIAS)
)

FRESH = "fresh"
QUARANTINE_SHARE = "quarantine_share"
ANNOUNCED_ROWS = "announced_rows"
PENDING_AGE = "pending_age"
# A guess: sample traffic rejects 0.1 %, a producer that changed its format nearly all.
QUARANTINE_WARN_PERCENT = 5
QUARANTINE_BATCHES = 100

ENGAGEMENT_CHECKS = (
    dg.AssetCheckKey(DATA, FRESH), dg.AssetCheckKey(DATA, PENDING_AGE), dg.AssetCheckKey(REJECTED, QUARANTINE_SHARE),
    dg.AssetCheckKey(DATA, "unique_engagement_id"), dg.AssetCheckKey(DATA, "nothing_lost"),
    dg.AssetCheckKey(DATA, "identity"), dg.AssetCheckKey(DATA, "contents"), dg.AssetCheckKey(DATA, GUARDS_KEPT),
    dg.AssetCheckKey(NAMES, "names"),
    dg.AssetCheckKey(NOTIFIED, FRESH), dg.AssetCheckKey(NOTIFIED, "announced"),
    dg.AssetCheckKey(NOTIFIED, ANNOUNCED_ROWS),
    dg.AssetCheckKey(REJECTED, "rejected_once"), dg.AssetCheckKey(NOTIFIED, CONSUMERS_KEEP_UP),
)  # fmt: skip
"""Checks of the tables that engagement runs write, other than those they yield themselves."""
REQUEST_CHECKS = (dg.AssetCheckKey(REQUESTS, FRESH), dg.AssetCheckKey(ALIASES, "acyclic"))
"""The same of mutation requests."""

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
    (ALIASES, "acyclic"): (
        ("acyclic", "accepted_once"),
        "Every chain of aliases of some organizations ends, and every accepted request stands once.",
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


def freshness_result(
    asset: dg.AssetKey, oldest: datetime | None, backlog: int, now: datetime, limit: timedelta
) -> dg.AssetCheckResult:
    """Passed when nothing waits for longer than the limit; exactly the limit is fine."""
    age = now - oldest if oldest else timedelta(0)
    late = age > limit
    return dg.AssetCheckResult(
        passed=not late,
        asset_key=asset,
        check_name=FRESH,
        description=f"The oldest of {backlog:,} waiting messages is {age.total_seconds():.0f} s old; the limit "
        f"is {limit.total_seconds():.0f} s. Look at the sensors and at the last runs." if late else None,
        metadata={"oldest_waiting_s": round(max(0.0, age.total_seconds()), 1), "waiting": backlog},
    )  # fmt: skip


def freshness(job: str, asset: dg.AssetKey, looked: Waiting, topic: str | None = None) -> dg.AssetCheckResult:
    """Age of the oldest message that no finished batch has read. A warning, not a failure, where nobody can tell."""
    try:
        oldest, backlog = looked.oldest(job, topic), looked.backlog(job, topic)
    except PlatformError as error:
        return dg.AssetCheckResult(
            passed=False,
            asset_key=asset,
            check_name=FRESH,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"Nobody can tell: {error}",
        )
    return freshness_result(asset, oldest, backlog, datetime.now(UTC), looked.settings.quality.freshness)


def pending_age_result(pending: Pending, now: datetime, max_pending: timedelta) -> dg.AssetCheckResult:
    """Passed when no change pends for longer than twice max_pending, the second half of which is for the move itself.

    Exactly that is fine.
    """
    age = timedelta(0) if pending.since is None else now - pending.since
    late = age > 2 * max_pending
    return dg.AssetCheckResult(
        passed=not late,
        asset_key=DATA,
        check_name=PENDING_AGE,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{pending.rows:,} rows pend, the oldest for {age.total_seconds():.0f} s; mutation.max_pending is "
        f"{max_pending.total_seconds():.0f} s. Look at the last runs of rematerialize_aliases." if late else None,
        metadata={"pending_rows": pending.rows, "oldest_pending_s": round(max(0.0, age.total_seconds()), 1)},
    )  # fmt: skip


def pending_age(looked: Waiting) -> dg.AssetCheckResult:
    """How long changes of engagements and names pend."""
    waits = pending_changes(looked.settings, looked.stores)
    return pending_age_result(waits, datetime.now(UTC), looked.settings.mutation.max_pending)


def quarantine_share_result(rows_in: int, quarantined: int, warn_percent: int) -> dg.AssetCheckResult:
    """Passed when at most warn_percent of the records were rejected. Nothing received is fine."""
    too_many = quarantined * 100 > warn_percent * rows_in
    return dg.AssetCheckResult(
        passed=not too_many,
        asset_key=REJECTED,
        check_name=QUARANTINE_SHARE,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{quarantined:,} of the last {rows_in:,} records were rejected, more than {warn_percent} %. The "
        "column reason of engagement/quarantine says why." if too_many else None,
        metadata={"rows_in": rows_in, "quarantined": quarantined},
    )  # fmt: skip


def quarantine_share(looked: Waiting) -> dg.AssetCheckResult:
    """Rejected records among those of the last batches of all jobs."""
    history = looked.stores.checkpoints.history
    totals = summed(record for job in JOB_NAMES for record in succeeded(history(job, limit=QUARANTINE_BATCHES)))
    return quarantine_share_result(totals["rows_in"], totals["quarantined"], QUARANTINE_WARN_PERCENT)


def announced_rows_result(found: Sequence[Announced]) -> dg.AssetCheckResult:
    """Passed when every batch of `apply-mutations` announced each row it counted, and no other. No batch is fine."""
    wrong = not_announced(found)
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=NOTIFIED,
        check_name=ANNOUNCED_ROWS,
        description="; ".join(wrong) or None,
        metadata={
            "batches": len(found),
            "rows_changed": sum(of.seen for of in found),
            "notifications": sum(of.notifications for of in found),
        },
    )


def watched(looked: Waiting) -> list[dg.AssetCheckResult]:
    """The checks that need no Spark, as they stand now. Within PATIENCE for each when the broker is down."""
    return [
        freshness(INGEST_ENGAGEMENTS, DATA, looked),
        freshness(INGEST_MUTATION_REQUESTS, REQUESTS, looked),
        freshness(APPLY_MUTATIONS, NOTIFIED, looked),
        pending_age_result(
            pending_changes(looked.settings, looked.stores), datetime.now(UTC), looked.settings.mutation.max_pending
        ),
        quarantine_share(looked),
        announced_rows_result(announced_rows(looked.settings, looked.stores)),
        keep_up(looked.settings, looked.stores),
    ]


def selected(
    context: dg.AssetCheckExecutionContext, results: Sequence[dg.AssetCheckResult]
) -> Iterator[dg.AssetCheckResult]:
    """Those a run asked for: one that materializes some assets by hand asks for the checks of those."""
    for result in results:
        if dg.AssetCheckKey(result.asset_key or DATA, result.check_name or "") in context.selected_asset_check_keys:
            yield result


@dg.multi_asset_check(
    name="verify_tables",
    can_subset=True,
    specs=[
        *(
            dg.AssetCheckSpec(check, asset=asset, description=says)
            for (asset, check), (_, says) in TABLE_CHECKS.items()
        ),
        dg.AssetCheckSpec(GUARDS_KEPT, asset=DATA, description=SAYS),
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


@dg.multi_asset_check(
    name="watch_stores_and_broker",
    can_subset=True,
    specs=[
        dg.AssetCheckSpec(FRESH, asset=DATA, description="No message waits longer than `quality.freshness`."),
        dg.AssetCheckSpec(FRESH, asset=REQUESTS, description="No message waits longer than `quality.freshness`."),
        dg.AssetCheckSpec(
            FRESH, asset=NOTIFIED, description="No request waits longer than `quality.freshness` to be announced."
        ),
        dg.AssetCheckSpec(
            PENDING_AGE, asset=DATA, description="No change waits longer than twice `mutation.max_pending` to be moved."
        ),
        dg.AssetCheckSpec(
            ANNOUNCED_ROWS, asset=NOTIFIED,
            description=f"The last {ANNOUNCED_BATCHES} batches of requests announced every row they changed, once.",
        ),
        dg.AssetCheckSpec(
            CONSUMERS_KEEP_UP, asset=NOTIFIED,
            description="No consumer of changes is further behind than `consumers.max_lag`.",
        ),
        dg.AssetCheckSpec(
            QUARANTINE_SHARE, asset=REJECTED,
            description=f"At most {QUARANTINE_WARN_PERCENT} % of the last {QUARANTINE_BATCHES} batches were rejected.",
        ),
    ],
)  # fmt: skip
def watch_stores_and_broker(
    context: dg.AssetCheckExecutionContext, platform: Platform
) -> Iterator[dg.AssetCheckResult]:
    """Freshness and quarantine from broker and stores; the sensor `watch` reports the same without a run."""
    yield from selected(context, watched(waiting(platform.settings())))


@dg.op
def verify(context: dg.OpExecutionContext, platform: Platform) -> None:
    """The same as the check `verify_tables`, reported to the runs that wrote the tables, where it stays in sight."""
    with platform.open("verify") as opened:
        results = results_of(opened)
    for result in results:
        name = f"{result.asset_key.to_user_string() if result.asset_key else ''} {result.check_name}"
        context.log.info(f"{name}: {'passed' if result.passed else result.description}")
    report(context.instance, results)


@dg.job
def verify_engagements() -> None:
    """Compare the tables with the topic: nothing lost, nothing doubled, all announced. Changes nothing."""
    verify()


def definitions() -> dg.Definitions:
    """Checks and job of this module."""
    return dg.Definitions(asset_checks=[verify_tables, watch_stores_and_broker], jobs=[verify_engagements])
