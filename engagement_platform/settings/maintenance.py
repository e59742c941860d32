"""OPTIMIZE, VACUUM and migrations."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from engagement_platform.settings.section import Section

_MIB, _GIB = 1024**2, 1024**3


class MaintenanceSettings(Section):
    """How much upkeep of files a run does, and what it never removes."""

    target_file_bytes: int = Field(
        default=128 * _MIB,
        ge=1,
        description="Size up to which the daily OPTIMIZE merges files. 128 MB is Spark's own target for auto "
        "compaction; larger files make each later mutation rewrite more.",
    )
    second_round_file_bytes: int = Field(
        default=1 * _GIB,
        ge=1,
        description="Size up to which the weekly second round merges what the daily one left (1 GB is Spark's default "
        "of a full OPTIMIZE).",
    )
    budget: timedelta = Field(
        default=timedelta(minutes=15),
        description="A run takes no new slice after this long; the next one plans anew and goes on with what gains "
        "most. Longer than a run can be without anybody missing the machine (a guess).",
    )
    max_rewrite_share: float = Field(
        default=0.5,
        gt=0,
        description="A partition is left alone while each file that is saved would cost rewriting more than this share "
        "of the target size: merging one small file into a large one every day writes the large one every day.",
    )
    attempts: int = Field(
        default=4,
        ge=1,
        description="How often a slice is tried when other commits changed its files meanwhile. After that it is left "
        "for the next run.",
    )
    backoff: timedelta = Field(
        default=timedelta(seconds=1),
        description="Pause before the second attempt at a slice; doubled before each more.",
    )
    rollback_window: timedelta = Field(
        default=timedelta(days=7),
        description="Versions younger than this stay readable: VACUUM refuses to go below it, so that a bad batch can "
        "be rolled back after a long weekend.",
    )
