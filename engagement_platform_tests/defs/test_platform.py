"""The resource: its fields win over the settings, so that one code location may have two platforms."""

# No `from __future__ import annotations` beside Dagster's decorators.

from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs.platform import Platform
from engagement_platform.settings import Settings


def test_two_platforms_in_one_code_location_have_settings_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__TIMEOUT", "PT7S")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS", "setting:9092")
    monkeypatch.setenv("STORES_OF_EU", "postgresql+psycopg2://me:secret@eu/stores")
    found: dict[str, Settings] = {}

    @dg.op
    def look(eu: Platform, us: Platform) -> None:
        found.update(eu=eu.settings(), us=us.settings())

    @dg.job
    def look_at_both() -> None:
        look()

    eu = Platform(
        home=str(tmp_path / "eu"), kafka_bootstrap_servers="eu:9092", spark_remote="sc://eu:15002",
        stores_url=dg.EnvVar("STORES_OF_EU"),
    )  # fmt: skip
    both = dg.Definitions(jobs=[look_at_both], resources={"eu": eu, "us": Platform(home=str(tmp_path / "us"))})
    with dg.DagsterInstance.ephemeral() as instance:
        assert both.resolve_job_def("look_at_both").execute_in_process(instance=instance).success

    assert (found["eu"].lake, found["us"].lake) == (str(tmp_path / "eu" / "lake"), str(tmp_path / "us" / "lake"))
    assert [found[name].kafka.bootstrap_servers for name in ("eu", "us")] == ["eu:9092", "setting:9092"]
    assert [found[name].spark.remote for name in ("eu", "us")] == ["sc://eu:15002", None]
    assert found["eu"].store_url.endswith("@eu/stores")
    assert found["us"].store_url == f"sqlite:///{tmp_path / 'us' / 'stores.db'}"
    assert [found[name].kafka.timeout.total_seconds() for name in ("eu", "us")] == [7, 7]
