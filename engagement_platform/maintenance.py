"""Upkeep of a whole lake, ready to run: what the command line and Dagster both call.

Opens stores, and Spark only when something needs it. What upkeep does is in `layout/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from engagement_platform.engine import job
from engagement_platform.engine.job import Stores
from engagement_platform.engine.lease import LeaseUnavailable
from engagement_platform.errors import PlatformError
from engagement_platform.jobs import INGEST_ENGAGEMENTS, REREAD_ENGAGEMENTS, open_stores
from engagement_platform.lake.lake import Lake
from engagement_platform.lake.optimize import SparkGetter
from engagement_platform.lake.session import spark_session
from engagement_platform.layout import history, survey
from engagement_platform.layout.doctor import Target, targets
from engagement_platform.layout.files import LogNotReadable
from engagement_platform.layout.maintain import ORGANIZATION, Asked, Outcome, Plan, Run, Told, planned
from engagement_platform.layout.migrate import MIGRATE, Migrated, Migration
from engagement_platform.layout.optimize import Tools
from engagement_platform.layout.unfinished_reads import StillRead
from engagement_platform.layout.vacuum import Checkpointed, RetentionNotApplied, Vacuumed, checkpoint, vacuum
from engagement_platform.pipelines.mutations.move import REMATERIALIZE_ALIASES
from engagement_platform.pipelines.parts import APPLY_MUTATIONS
from engagement_platform.settings import LayoutScheme, Settings

READERS: Mapping[str, str] = {}
"""Jobs that follow a table by its versions: what they have yet to read is not removed. None of the platform's does."""

WRITERS = (APPLY_MUTATIONS, INGEST_ENGAGEMENTS, REMATERIALIZE_ALIASES, REREAD_ENGAGEMENTS)
"""Jobs that write the Data Table under a lease of their own; those of a redrive, and restores, are kept out by the
table's."""

SparkOpener = Callable[[], AbstractContextManager[SparkSession]]

T = TypeVar("T")


@contextmanager
def spark_when_needed(open_spark: SparkOpener) -> Iterator[SparkGetter]:
    """Spark for as long as this lasts, opened by the first call: most upkeep of one machine needs no JVM."""
    found = list[SparkSession]()
    with ExitStack() as stack:

        def get() -> SparkSession:
            if not found:
                found.append(stack.enter_context(open_spark()))
            return found[0]

        yield get


def optimize(
    settings: Settings, chosen: Plan, asked: Asked, told: Told | None = None, open_spark: SparkOpener | None = None
) -> Iterator[Outcome]:
    """Each slice of a plan, done or left with the reason. Raises StoresUnavailable."""
    with spark_when_needed(open_spark or partial(spark_session, settings, "optimize")) as spark:
        run = Run(settings, open_stores(settings), Tools(settings.maintenance, spark), told or Told())
        yield from run.do(chosen, asked.budget)


def optimize_all(
    settings: Settings, asked: Asked, told: Told | None = None, open_spark: SparkOpener | None = None
) -> tuple[Plan, list[Outcome]]:
    """Plan and do. Raises what `planned` raises, and StoresUnavailable."""
    chosen = planned(settings, asked)
    return chosen, list(optimize(settings, chosen, asked, told, open_spark))


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
    with spark_when_needed(open_spark or partial(spark_session, settings, "vacuum")) as spark:

        def one(table: Target, stores: Stores) -> Vacuumed:
            return vacuum(settings, table, stores, READERS, spark, hours=hours, dry_run=dry_run)

        yield from _each(settings, asked, one)


def migrate(settings: Settings, table: str, wanted: LayoutScheme, callbacks: job.Callbacks | None = None) -> Migrated:
    """Give the Data Table another layout. Raises what `Migration.run` raises."""
    stores = open_stores(settings)
    began = datetime.now(UTC)
    with spark_session(settings, MIGRATE) as spark:
        done = Migration(Lake(spark, settings), stores, WRITERS, callbacks or job.Callbacks()).run(table, wanted)
        if (mended := done.mended(began)) is not None:
            history.remember_mended(settings, mended, spark)
        return done


def checkpoint_logs(settings: Settings, asked: str | None = None) -> Iterator[Checkpointed | PlatformError]:
    """Checkpoints where many commits came after the newest, of one table or of all, and expired entries removed."""

    with spark_when_needed(partial(spark_session, settings, "checkpoint")) as spark:

        def one(table: Target, stores: Stores) -> Checkpointed:
            return checkpoint(settings, table, stores, READERS, spark)

        yield from _each(settings, asked, one)


def _each(settings: Settings, asked: str | None, do: Callable[[Target, Stores], T]) -> Iterator[T | PlatformError]:
    stores = open_stores(settings)
    for table in targets(settings, asked):
        try:
            yield do(table, stores)
        except (LogNotReadable, RetentionNotApplied, StillRead, LeaseUnavailable) as error:
            # One table must not keep the others from being looked after.
            if asked is not None:
                raise
            yield error


def organizations(settings: Settings) -> set[str]:
    """Every organization that is a partition value of some table of the lake. Reads logs, no data."""
    found = set[str]()
    for table in targets(settings):
        try:
            found |= survey.partition_values(table, ORGANIZATION)
        except LogNotReadable:
            continue
    return found
