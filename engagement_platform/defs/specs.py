"""Asset keys, partitions and asset specs, made from the tables' contracts. What fills the assets is `engagement`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

import dagster as dg

from engagement_platform.engine.database import StoresUnavailable
from engagement_platform.engine.model import RULES_VERSION
from engagement_platform.lake.contract import Mode, Table
from engagement_platform.lake.engagement import (
    ALIAS,
    CHANGESET,
    MAPPING,
    MUTATION_REQUEST,
    NOTIFICATION,
    QUARANTINE,
    data_table,
)
from engagement_platform.pipelines.status import first_batch_day
from engagement_platform.settings import Settings

GROUP, SOURCES, MAINTENANCE = "engagement", "sources", "maintenance"
# A group of their own: thirty tables would hide all others in the graph.
GAMES_GROUP = "games"

# Columns and description do not depend on the layout, which is a setting and unknown when definitions load.
DATA_TABLE = data_table("liquid")


SHOWN_WITHOUT_STORES = timedelta(days=30)


@cache
def ingestion_days() -> dg.DailyPartitionsDefinition:
    """Days on which batches were ingested, not days of engagements: years-old ones that arrive today belong to today.

    From `dagster.first_day`, or from the day of the first batch, on; read once in a process.
    """
    settings, today = Settings(), datetime.now(UTC).date()
    try:
        # Before the first batch yesterday: a run that is launched for today may start after midnight.
        first = settings.dagster.first_day or first_batch_day(settings) or today - timedelta(days=1)
    except StoresUnavailable as error:
        # People look at the UI to see what is wrong, so it loads also then.
        first = today - SHOWN_WITHOUT_STORES
        dg.get_dagster_logger().warning(f"{error} Until this code location is reloaded, days begin at {first}.")
    # end_offset: today counts.
    return dg.DailyPartitionsDefinition(start_date=first.isoformat(), timezone="UTC", end_offset=1)


def topic_key(topic: str) -> dg.AssetKey:
    """A topic as an asset: what tables come from."""
    return dg.AssetKey(["kafka", topic])


def key_of(table: Table) -> dg.AssetKey:
    """A table's asset key: its path under the lake's root."""
    return dg.AssetKey(list(table.key))


def column_schema(table: Table) -> dg.TableSchema:
    """The declared columns as the UI shows them."""
    return dg.TableSchema(
        columns=[dg.TableColumn(column.name, column.type, description=column.comment) for column in table.columns]
    )


def column_lineage(table: Table) -> dg.TableColumnLineage | None:
    """Columns of a table that are copied from columns of another one; None where none is known."""
    if table != NOTIFICATION:
        return None
    same = ("organization_id", "engagement_id", "engagement_date", "person_id")
    data, copied = key_of(DATA_TABLE), {**{name: name for name in same}, "previous_person_id": "person_id"}
    return dg.TableColumnLineage({name: [dg.TableColumnDep(data, source)] for name, source in copied.items()})


def table_spec(table: Table, deps: Sequence[dg.AssetKey], group: str = GROUP) -> dg.AssetSpec:
    """One table as an asset. Skippable: runs report each batch while they go on, and yield no result at the end."""
    rows = "Append-only: consumers may stream it." if table.mode is Mode.APPEND_ONLY else "Mutable: rows change."
    return dg.AssetSpec(
        key_of(table),
        deps=deps,
        description=f"{table.description} {rows}",
        group_name=group,
        kinds={"deltalake", "spark"},
        metadata={"dagster/column_schema": column_schema(table)},
        skippable=True,
        code_version=str(RULES_VERSION),
    )


ENGAGEMENTS_TOPIC, MUTATION_REQUESTS_TOPIC, PROFILE_CHANGES_TOPIC = map(
    topic_key, ("engagements", "mutation-requests", "profile-changes")
)


def topic_spec(key: dg.AssetKey, what: str, setting: str) -> dg.AssetSpec:
    """A topic that tables come from; filled by others."""
    return dg.AssetSpec(
        key,
        description=f"Kafka topic of {what}; its name on the broker is the setting `{setting}`.",
        group_name=SOURCES,
        kinds={"kafka"},
    )


def topic_specs() -> list[dg.AssetSpec]:
    requests = "requests to convert, delete, rename or update"
    return [
        topic_spec(ENGAGEMENTS_TOPIC, "engagement events", "kafka.engagements_topic"),
        topic_spec(MUTATION_REQUESTS_TOPIC, requests, "kafka.mutation_requests_topic"),
        topic_spec(PROFILE_CHANGES_TOPIC, "partial updates of profiles", "kafka.profile_changes_topic"),
    ]


def engagement_specs() -> list[dg.AssetSpec]:
    """The tables that one batch of engagements fills; the Data Table's commit publishes it, notifications come last."""
    return [
        table_spec(QUARANTINE, [ENGAGEMENTS_TOPIC, MUTATION_REQUESTS_TOPIC, PROFILE_CHANGES_TOPIC]),
        table_spec(MAPPING, [ENGAGEMENTS_TOPIC]),
        table_spec(CHANGESET, [ENGAGEMENTS_TOPIC]),
        table_spec(DATA_TABLE, [ENGAGEMENTS_TOPIC, key_of(MUTATION_REQUEST)]),
        table_spec(NOTIFICATION, [key_of(DATA_TABLE), key_of(MUTATION_REQUEST)]),
    ]


def request_specs() -> list[dg.AssetSpec]:
    """The tables that a batch of mutation requests fills; that of the requests publishes it."""
    return [table_spec(table, [MUTATION_REQUESTS_TOPIC]) for table in (ALIAS, MUTATION_REQUEST)]


def view_spec(name: str, tables: Sequence[Table], group: str, shows: str) -> dg.AssetSpec:
    """A view over some tables: no table, made anew by each reader."""
    return dg.AssetSpec(
        name.split("/"),
        deps=[key_of(table) for table in tables],
        description=f"{shows} Nothing is stored; read it with `engagement-platform read {name}`.",
        group_name=group,
        kinds={"view"},
    )
