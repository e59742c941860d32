"""Dagster components: tables of your own, declared in a `defs.yaml` file, as `engagement_platform.NAME`."""

from engagement_platform.defs.components.kafka_table import KafkaTable
from engagement_platform.defs.components.maintained_table import MaintainedTable
from engagement_platform.defs.components.merge_on_read_entity import MergeOnReadEntity
from engagement_platform.defs.components.s3_sqs_tables import S3SqsTables
from engagement_platform.defs.components.view_analytics import ViewAnalytics

__all__ = ["KafkaTable", "MaintainedTable", "MergeOnReadEntity", "S3SqsTables", "ViewAnalytics"]
