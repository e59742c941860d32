"""Copied stores whose jobs read copies of their topics: other topics, with the same messages at the same offsets."""

from __future__ import annotations

from sqlalchemy import Engine, select

from engagement_platform.engine.database import BATCH, CHECKPOINT


def forget_identities(engine: Engine) -> None:
    """Let the jobs take the topics that they find now for the ones that they have read."""
    with engine.execution_options(engagement_platform_writes=True).begin() as connection:
        for table in (CHECKPOINT, BATCH):
            for row in connection.execute(select(table.c.job_name, table.c.batch_id, table.c.pinned)).all():
                where = (table.c.job_name == row.job_name, table.c.batch_id == row.batch_id)
                kept = {**row.pinned, "identity": {}}
                connection.execute(table.update().where(*where).values(pinned=kept))
