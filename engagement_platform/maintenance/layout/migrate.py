"""Gives the Data Table another layout: what that takes, who has to agree, and the proof that every row is still there.

Rows are written by `lake/repartition`, in one commit: a run that dies leaves the old layout or the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.engine.fencing import lease_transaction
from engagement_platform.engine.job import Callbacks, Stores
from engagement_platform.engine.lease import Fence, Lease
from engagement_platform.engine.unfinished_batches import OthersBatchUnfinished, blocking_batches
from engagement_platform.errors import PlatformError
from engagement_platform.lake import driver_lease, log
from engagement_platform.lake.engagement import data_table
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.repartition import WrittenMeanwhile, declare, last_relaid, organizations, relay, scheme_of
from engagement_platform.lake.restore import Checksum, checksums, rolled_back, whole
from engagement_platform.lake.session import spark_session
from engagement_platform.maintenance.layout.remedies import readable
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, REREAD_ENGAGEMENTS, open_stores
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import LayoutScheme, Settings

MIGRATE = "migrate-layout"

WRITERS = (APPLY_MUTATIONS, INGEST_ENGAGEMENTS, REMATERIALIZE_ALIASES, REREAD_ENGAGEMENTS)
"""Jobs that write the Data Table under a lease of their own; those of a redrive, and restores, are kept out by the
table's."""


class NotMigratable(PlatformError):
    """A table that cannot be given another layout, or not now."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} cannot be given another layout: {why}. Nothing was changed.")


class MigrationDiffers(PlatformError):
    """The table holds something else in its new layout."""

    def __init__(self, table: str, versions: tuple[int, int], sums: tuple[Checksum, Checksum], after: str) -> None:
        before, now = sums
        super().__init__(
            f"Version {versions[1]} of {table} has another layout than version {versions[0]} and other rows: "
            f"{now.rows:,} with the sum {now.total} instead of {before.rows:,} with {before.total}. {after} Did "
            "something outside the platform write meanwhile? Otherwise this is a defect: please report it."
        )


@dataclass(frozen=True)
class Plan:
    """What a migration would do. tasks: of Spark, that write the rows; agreed: whether the settings say the layout."""

    table: str
    version: int
    now: LayoutScheme
    wanted: LayoutScheme
    rows: int
    files: int
    bytes: int
    tasks: int
    agreed: bool

    def as_json(self) -> dict[str, object]:
        """Everything by name."""
        return dict(vars(self))

    def __str__(self) -> str:
        if self.now == self.wanted:
            return f"{self.table} is {self.now} already, at version {self.version}."
        first = f" First set ENGAGEMENT_PLATFORM_LAYOUT__SCHEME={self.wanted} for every process."
        return (
            f"{self.table} from {self.now} to {self.wanted}: {self.rows:,} rows, {self.files:,} files, "
            f"{readable(self.bytes)} to rewrite.{'' if self.agreed else first}"
        )


@dataclass(frozen=True)
class Migrated:
    """A table that has the layout.

    versions: before and after; None: it was made so. rows: what both hold; None: they are not readable any more.
    """

    plan: Plan
    versions: tuple[int, int] | None
    rows: int | None
    checksum: str | None
    files_after: int
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Plan and outcome."""
        return {
            **self.plan.as_json(),
            "from_version": self.versions[0] if self.versions else None,
            "to_version": self.versions[1] if self.versions else None,
            "checked_rows": self.rows,
            "checksum": self.checksum,
            "files_now": self.files_after,
            "took_seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        if self.versions is None:
            return f"{self.plan.table} was made {self.plan.wanted} and never migrated. Nothing to do."
        before, made = self.versions
        if self.rows is None:
            return f"{self.plan.table} is {self.plan.wanted} since version {made}, too long ago to be compared again."
        return (
            f"{self.plan.table} is {self.plan.wanted} since version {made}: {self.rows:,} rows, equal to those of "
            f"version {before}; {self.files_after:,} files now, {self.seconds:.1f} s."
        )


def plan(settings: Settings, table: str, wanted: LayoutScheme) -> Plan:
    """What it takes to give a table a layout. Reads its log; changes nothing. Raises NotMigratable."""
    data = data_table(wanted)
    if table != data.name:
        raise NotMigratable(table, f"only {data.name} has more than one layout")
    uri = data.uri(settings.lake)
    found, now = log.open_log(uri), scheme_of(uri)
    if found is None:
        raise NotMigratable(table, f"there is none yet, the first run makes it with layout.scheme = {wanted}")
    if now is None:
        raise NotMigratable(table, f"it is partitioned by {', '.join(found.metadata().partition_columns)}")
    if now != wanted and found.metadata().configuration.get("delta.enableChangeDataFeed") == "true":
        raise NotMigratable(
            table,
            "its change data feed (delta.enableChangeDataFeed) would show every row as deleted and inserted. Let its "
            "readers catch up, set the property to false, migrate, set it again, and let them go on from the version "
            "after the migration",
        )
    described = log.describe(uri)
    undeclared = [name for name in described.columns if name not in data.column_names] if described else []
    if now != wanted and undeclared:
        raise NotMigratable(
            table,
            f"the rewrite would drop columns that are not declared: {', '.join(undeclared)}. Jobs refuse the table as "
            "well. Copy their values to a table of your own, rewrite this one without them (in Spark an overwrite with "
            "overwriteSchema), and then migrate",
        )
    files = pa.table(found.get_add_actions(flatten=True))
    held = int(pc.sum(files.column("size_bytes")).as_py() or 0)
    return Plan(
        table=table,
        version=int(found.version()),
        now=now,
        wanted=wanted,
        rows=int(pc.sum(files.column("num_records")).as_py() or 0),
        files=files.num_rows,
        bytes=held,
        tasks=max(ceil(held / settings.maintenance.target_file_bytes), settings.spark.shuffle_partitions),
        agreed=settings.layout.scheme == wanted,
    )


def migrate(settings: Settings, table: str, wanted: LayoutScheme, callbacks: Callbacks | None = None) -> Migrated:
    """Give the Data Table another layout. Raises what `run` raises."""
    stores = open_stores(settings)
    with spark_session(settings, MIGRATE) as spark:
        return run(Lake(spark, settings), stores, table, wanted, callbacks or Callbacks())


def run(lake: Lake, stores: Stores, table: str, wanted: LayoutScheme, callbacks: Callbacks) -> Migrated:
    """Migrate, or, where that was done before, compare the two versions once more.

    callbacks: `observe` is called at: leased, relaid, verified. Raises NotMigratable, LeaseUnavailable,
    OthersBatchUnfinished, WrittenMeanwhile, MigrationDiffers.
    """
    settings, began, data = lake.settings, time.monotonic(), data_table(wanted)
    planned = plan(settings, table, wanted)
    if not planned.agreed:
        raise NotMigratable(
            table,
            f"layout.scheme is {settings.layout.scheme}, and jobs would refuse the table afterwards. Set "
            f"ENGAGEMENT_PLATFORM_LAYOUT__SCHEME={wanted} (or layout.scheme in platform.toml) for every process "
            "first; until the table is migrated, new runs stop without having written anything",
        )
    with _alone(settings, stores, table, callbacks) as leases:
        # Planned anew: the table may have been written or migrated while this waited.
        planned = plan(settings, table, wanted)
        callbacks.observe("leased")

        def guard() -> None:
            for lease in leases:
                lease.check()
            driver_lease.check(lake.root)

        if relaying := planned.now != wanted:
            # As folders of a partitioned table, ids of any kind: a clustered one takes them all.
            lake.accept_folders("organization_id", organizations(lake, data), data)
            # The table's lease is the last of them.
            relay(lake, wanted, planned.tasks, replace(lease_transaction(leases[-1].fence), guard=guard))
            if scheme_of(lake.uri(data)) != wanted:
                raise WrittenMeanwhile(table, "a later holder of the table's lease has written to it")
            callbacks.observe("relaid")
        versions, found = _compared(lake, wanted, guard, again=not relaying)
        callbacks.observe("verified")
        declare(lake, data, guard)
        files = log.open_log(lake.uri(data))
        assert files is not None, f"{table} is gone"
        rows, checksum = (found.rows, found.total) if found else (None, None)
        return Migrated(planned, versions, rows, checksum, len(files.file_uris()), time.monotonic() - began)


def _compared(
    lake: Lake, wanted: LayoutScheme, guard: Callable[[], None], *, again: bool
) -> tuple[tuple[int, int] | None, Checksum | None]:
    """Compare the rows before and after the commit that gave the table its layout. Raises MigrationDiffers.

    again: the commit is not of this run; when its versions are gone meanwhile, there is nothing to compare.
    """
    data = data_table(wanted)
    relaid = last_relaid(lake.uri(data))
    if relaid is None or relaid[1] != wanted:
        return None, None
    versions = (relaid[0] - 1, relaid[0])
    if again and not all(whole(lake, data, version) for version in versions):
        return versions, None
    before, made = checksums(lake, [(data, version) for version in versions])
    if before == made:
        return versions, made
    after = f"Read version {versions[0]} as long as it is kept."
    if lake.version(data) == versions[1]:
        rolled_back(lake, data, versions[0], guard)
        after = f"The table was taken back to version {versions[0]}."
    raise MigrationDiffers(data.name, versions, (before, made), after)


@contextmanager
def _alone(settings: Settings, stores: Stores, table: str, callbacks: Callbacks) -> Iterator[Sequence[Lease]]:
    """Hold the leases of the jobs that write the table, and its own; none of them is in the middle of a batch.

    A drain holds its job's lease from its first batch to its last, and has the layout of its start in mind.
    In one order, and the table's last: those who hold one job and want tables never wait in a circle.
    """
    leases, own = [], f"table/{table}"
    # Stores that are new or from a backup count from below what the table has, and Delta would skip the commit.
    found = log.open_log(f"{settings.lake}/{table}")
    seen = None if found is None else found.transaction_version(lease_transaction(Fence(own, 0)).app_id)
    with ExitStack() as held:
        for name in [*(f"job/{job}" for job in sorted(WRITERS)), own]:
            on_wait, wait = partial(callbacks.on_wait, name), settings.stores.lease_wait
            above = seen or 0 if name == own else 0
            taken = stores.leases.acquire(name, purpose=MIGRATE, wait=wait, on_wait=on_wait, above=above)
            leases.append(held.enter_context(taken))
        if others := blocking_batches("", {table}, stores.checkpoints.unfinished()):
            raise OthersBatchUnfinished(MIGRATE, {table}, others)
        yield leases
