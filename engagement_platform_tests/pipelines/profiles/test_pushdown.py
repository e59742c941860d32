"""What a reader of some keys or of some rows does not open: through the SQL view, and without a JVM.

The function for Spark users is `test_view`. Files that need not be read are taken away: whoever opens one fails.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from engagement_platform.pipelines.profiles.entity import Entity
from engagement_platform.pipelines.profiles.point_read import base_read_seconds, point_read_seconds, read_keys
from engagement_platform.pipelines.profiles.snapshot import snapshot
from engagement_platform.pipelines.profiles.view import create_view
from engagement_platform.settings import MergeOnReadSettings, ViewStrategy
from engagement_platform_tests.matrix import quick
from engagement_platform_tests.pipelines.profiles.histories import PROFILE, Changes
from engagement_platform_tests.pipelines.profiles.oracle import Said
from engagement_platform_tests.pipelines.profiles.test_view import NEW_ONLY, in_files, lake_of, take_away


def two_of_each(root: Path, entity: Entity = PROFILE) -> Changes:
    """Base and changeset in two files each, of which one of each may have z. What waits lands as the entity says."""
    changes = in_files(root, [Said("a", 1, "INSERT", {"name": "Ann"})], [Said("z", 1, "INSERT", {"name": "Zoe"})])
    changes.entity = entity
    changes.land(2, [Said("b", 1, "INSERT", {"name": "Bo"})])
    changes.land(3, [Said("z", 2, "UPDATE", {"city": "Oslo"})])
    return changes


@pytest.mark.parametrize(
    ("strategy", "entity"),
    quick(
        [("double_rank_over", PROFILE), ("left_join_union_inserts", NEW_ONLY), ("left_join_anti_join", PROFILE)],
        unpack=True,
    ),
    ids=["double_rank_over", "left_join_union_inserts", "left_join_anti_join"],
)
def test_a_key_that_sql_asks_for_reaches_the_scan_of_the_base(
    spark: SparkSession, tmp_path: Path, strategy: ViewStrategy, entity: Entity
) -> None:
    """Changes that wait are folded whole, once for all queries. Adaptive execution would fold them here already."""
    two_of_each(tmp_path, entity)
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    name = create_view(lake_of(session, tmp_path, MergeOnReadSettings(view=strategy)), entity)
    assert take_away(PROFILE.base, tmp_path, profile_id="a") == 1
    rows = session.sql(f"SELECT name, city FROM {name} WHERE profile_id = 'z'").collect()
    assert [tuple(row) for row in rows] == [("Zoe", "Oslo")]


def test_a_key_opens_files_of_base_and_changeset_that_may_have_it_without_a_jvm(tmp_path: Path) -> None:
    two_of_each(tmp_path)
    assert take_away(PROFILE.base, tmp_path, profile_id="a") == 1
    assert take_away(PROFILE.changeset, tmp_path, profile_id="b") == 1
    found = read_keys(str(tmp_path), PROFILE, ["z"], snapshot(str(tmp_path), PROFILE))
    assert [(row["name"], row["city"]) for row in found.values()] == [("Zoe", "Oslo")]


def test_the_time_of_the_base_alone_is_taken_without_what_waits(tmp_path: Path) -> None:
    two_of_each(tmp_path).land(4, [Said("a", 2, "UPDATE", {"city": "Rome"})])
    for file in Path(PROFILE.changeset.uri(str(tmp_path))).rglob("*.parquet"):
        file.unlink()
    assert base_read_seconds(str(tmp_path), PROFILE)
    with pytest.raises(pa.ArrowException, match="profile/changeset"):
        point_read_seconds(str(tmp_path), PROFILE)
