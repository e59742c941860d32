"""Which application ids these stores gave out or have met; by them commits of our jobs are told from all others."""

from __future__ import annotations

from sqlalchemy import Engine, select

from engagement_platform.engine.database import BATCH, FOREIGN_APPLICATION, JOB_GENERATION, reading


def known_applications(engine: Engine) -> frozenset[str]:
    """Every application id of every job, also from before resets. Raises StoresUnavailable."""
    with reading(engine) as connection:
        used = connection.execute(select(BATCH.c.app_id).distinct()).scalars().all()
        drawn = connection.execute(select(JOB_GENERATION.c.app_id)).scalars().all()
        foreign = connection.execute(select(FOREIGN_APPLICATION.c.app_id)).scalars().all()
    return frozenset((*used, *drawn, *foreign)) - {""}
