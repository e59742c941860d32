"""Copied stores whose jobs read copies of their topics: other topics, with the same messages at the same offsets."""

from __future__ import annotations

from sqlalchemy import Engine, select

from engagement_platform.engine.schema import BATCH


def forget_identities(engine: Engine) -> None:
    """Let the jobs take the topics that they find now for the ones that they have read."""
    with engine.execution_options(engagement_platform_writes=True).begin() as connection:
        for row in connection.execute(select(BATCH.c.job_name, BATCH.c.batch_id, BATCH.c.manifest)).all():
            where = (BATCH.c.job_name == row.job_name, BATCH.c.batch_id == row.batch_id)
            connection.execute(BATCH.update().where(*where).values(manifest={**row.manifest, "identity": {}}))
