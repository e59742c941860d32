"""Which application ids these stores ever gave out: by them, commits of our jobs are told from those of others."""

from __future__ import annotations

from sqlalchemy import Engine, select

from engagement_platform.engine.database import BATCH, JOB_GENERATION, reading


def known_applications(engine: Engine) -> frozenset[str]:
    """Every application id of every job, also from before resets. Raises StoresUnavailable."""
    with reading(engine) as connection:
        used = connection.execute(select(BATCH.c.app_id).distinct()).scalars().all()
        drawn = connection.execute(select(JOB_GENERATION.c.app_id)).scalars().all()
    return frozenset((*used, *drawn)) - {""}
