"""The check of guards: green while only our jobs write, and a warning that names who else did and what to do."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from deltalake import write_deltalake

from engagement_platform.defs.verification import guards_kept
from engagement_platform_tests.consumers.lakes import PlainLake
from engagement_platform_tests.consumers.test_changes import land


def test_a_commit_of_somebody_else_warns_with_what_to_do(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    land(lake, "e1")
    kept = guards_kept(lake.settings, lake.stores)
    assert kept.passed
    assert kept.description is None
    write_deltalake(lake.uri(lake.data), lake.rows(lake.data), mode="append")
    found = guards_kept(lake.settings, lake.stores)
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    said = str(found.description)
    assert "engagement/data version 2: WRITE by delta-rs" in said
    assert "stop it, then run engagement-platform verify" in said
    each = found.metadata["each"]
    assert isinstance(each, dg.TableMetadataValue)
    assert [record.data["state"] for record in each.records][:4] == ["kept", "broken", "kept", "broken"]


def test_a_rule_that_cannot_be_looked_at_warns(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    land(lake, "e1")
    missing = lake.settings.model_copy(update={"defs_folder": tmp_path / "nowhere"})
    assert guards_kept(lake.settings, lake.stores).passed
    found = guards_kept(missing, lake.stores)
    assert not found.passed
    assert "Nobody can tell" in str(found.description)
