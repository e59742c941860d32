"""The engagement tables as assets, and the jobs and sensors that fill them from Kafka. `pipelines/` has the batches."""

from __future__ import annotations

import dagster as dg

from engagement_platform.defs.batches import Tables
from engagement_platform.defs.ingestion import Ingestion
from engagement_platform.defs.sensors import backlog_sensor
from engagement_platform.defs.specs import DATA_TABLE, GROUP, engagement_specs, request_specs, topic_specs, view_spec
from engagement_platform.lake.engagement import ALIAS, CHANGESET, MAPPING, MUTATION_REQUEST, NOTIFICATION, QUARANTINE
from engagement_platform.pipelines.jobs import INGEST_ENGAGEMENTS, INGEST_MUTATION_REQUESTS, reread

# An op has one pool; whatever reads engagements once more holds this one too. Announcements have a pool of their own,
# `mutation` says why; the leases in the stores are per table and keep the tables safe in any case.
DATA_POOL = "engagement_data"

ENGAGEMENT_TABLES = Tables(
    {QUARANTINE: "tables", MAPPING: "tables", CHANGESET: "tables", DATA_TABLE: "tables", NOTIFICATION: "notification"},
    publishes=DATA_TABLE,
    figures={QUARANTINE: ("quarantined",), MAPPING: ("names",), CHANGESET: ("images",)},
    by_day=True,
)
REQUEST_TABLES = Tables(
    {ALIAS: "tables", MUTATION_REQUEST: "tables"},
    {QUARANTINE: "tables"},
    publishes=MUTATION_REQUEST,
    figures={ALIAS: ("edges",), QUARANTINE: ("quarantined",)},
    wrote={QUARANTINE: "quarantined"},
)


ENGAGEMENTS = Ingestion(
    job=INGEST_ENGAGEMENTS,
    asset_name="ingest_engagement_tables",
    specs=engagement_specs(),
    pool=DATA_POOL,
    tables=ENGAGEMENT_TABLES,
    description="Engagements from Kafka, batch after batch, exactly once in each of their tables.",
    reread=reread,
)
REQUESTS = Ingestion(
    job=INGEST_MUTATION_REQUESTS,
    asset_name="ingest_mutation_request_table",
    specs=request_specs(),
    pool="engagement_mutation_request",
    tables=REQUEST_TABLES,
    description="Mutation requests from Kafka, accepted or rejected; accepted ones are visible with their batch.",
)


def definitions() -> dg.Definitions:
    view = view_spec(
        "engagement/current",
        [DATA_TABLE, ALIAS, CHANGESET],
        GROUP,
        "Engagements under the identity their person has now: the Data Table with the requests and changes that wait "
        "to be moved.",
    )
    return dg.Definitions(
        assets=[*topic_specs(), ENGAGEMENTS.assets, REQUESTS.assets, view],
        jobs=[
            ENGAGEMENTS.asset_job("Drain new engagements (today's partition) or read days again (any other)."),
            REQUESTS.asset_job("Drain new mutation requests."),
        ],
        sensors=[
            backlog_sensor("engagements_backlog", ENGAGEMENTS, "engagements wait on the broker", in_shared=True),
            backlog_sensor(
                "mutation_requests_backlog", REQUESTS, "mutation requests wait on the broker", in_shared=True
            ),
        ],
    )
