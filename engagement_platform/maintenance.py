"""Maintenance of a whole lake, ready to run: what the command line and Dagster both call.

Opens stores, and Spark only when something needs it. What maintenance does is in `layout/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from engagement_platform.engine import job
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.errors import PlatformError
from engagement_platform.jobs import INGEST_ENGAGEMENTS, REREAD_ENGAGEMENTS, open_stores
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import SparkGetter
from engagement_platform.lake.session import spark_session
from engagement_platform.layout import files, history
from engagement_platform.layout.files import LogNotReadable
from engagement_platform.layout.migrate import MIGRATE, Migrated, Migration
from engagement_platform.layout.optimize import ORGANIZATION, Asked, Callbacks, Outcome, Plan, Run, planned
from engagement_platform.layout.survey import targets
from engagement_platform.layout.vacuum import RetentionNotApplied, StillRead, Vacuumed, vacuum
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import LayoutScheme, Settings

WRITERS = (APPLY_MUTATIONS, INGEST_ENGAGEMENTS, REMATERIALIZE_ALIASES, REREAD_ENGAGEMENTS)
"""Jobs that write the Data Table under a lease of their own; those of a redrive, and restores, are kept out by the
table's."""

SparkOpener = Callable[[], AbstractContextManager[SparkSession]]


@contextmanager
def _when_needed(settings: Settings, app_name: str, open_spark: SparkOpener | None = None) -> Iterator[SparkGetter]:
    """Spark for as long as this lasts, opened by the first call: where there is nothing to do no session is needed."""
    found = list[SparkSession]()
    with ExitStack() as stack:

        def get() -> SparkSession:
            if not found:
                opened = open_spark() if open_spark else spark_session(settings, app_name)
                found.append(stack.enter_context(opened))
            return found[0]

        yield get


def optimize(
    settings: Settings, chosen: Plan, callbacks: Callbacks | None = None, open_spark: SparkOpener | None = None
) -> Iterator[Outcome]:
    """Each slice of a plan, done or left with the reason. Raises StoresUnavailable."""
    with _when_needed(settings, "optimize", open_spark) as spark:
        yield from Run(settings, open_stores(settings), spark, callbacks or Callbacks()).do(chosen)


def optimize_all(
    settings: Settings, asked: Asked, callbacks: Callbacks | None = None, open_spark: SparkOpener | None = None
) -> tuple[Plan, list[Outcome]]:
    """Plan and do. Raises what `planned` raises, and StoresUnavailable."""
    chosen = planned(settings, asked)
    return chosen, list(optimize(settings, chosen, callbacks, open_spark))


def vacuum_tables(
    settings: Settings,
    asked: str | None = None,
    *,
    hours: int | None = None,
    dry_run: bool = False,
    open_spark: SparkOpener | None = None,
) -> Iterator[Vacuumed | PlatformError]:
    """VACUUM of one table, or of every table of the lake; then a table that cannot be vacuumed comes as its error.

    Raises NoSuchTable, RetentionTooShort, and for a table that was named everything else too.
    """
    stores = open_stores(settings)
    with _when_needed(settings, "vacuum", open_spark) as spark:
        for table in targets(settings, asked):
            try:
                yield vacuum(settings, table, stores, spark, hours=hours, dry_run=dry_run)
            except (LogNotReadable, RetentionNotApplied, StillRead, LeaseUnavailable) as error:
                # One table must not keep the others from being looked after.
                if asked is not None:
                    raise
                yield error


def migrate(settings: Settings, table: str, wanted: LayoutScheme, callbacks: job.Callbacks | None = None) -> Migrated:
    """Give the Data Table another layout. Raises what `Migration.run` raises."""
    stores = open_stores(settings)
    began = datetime.now(UTC)
    with spark_session(settings, MIGRATE) as spark:
        done = Migration(Lake(spark, settings), stores, WRITERS, callbacks or job.Callbacks()).run(table, wanted)
        if (row := done.row(began)) is not None:
            history.remember(settings, "migrate", table, [row], spark)
        return done


def organizations(settings: Settings) -> set[str]:
    """Every organization that is a partition value of some table of the lake. Reads logs, no data."""
    found = set[str]()
    for table in targets(settings):
        try:
            opened = files.open_table(table.uri, table.name)
        except LogNotReadable:
            continue
        if ORGANIZATION in opened.metadata().partition_columns:
            found |= {value for values in opened.partitions() if (value := values.get(ORGANIZATION)) is not None}
    return found
