"""A home of one test, and events to send."""

from __future__ import annotations

from pathlib import Path

import pytest

from engagement_platform.pii.vault import Vault, open_vault
from engagement_platform.settings import IngestServerSettings, Settings


@pytest.fixture
def platform(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings(home=tmp_path / "home", ingest_server=IngestServerSettings(port=0))


@pytest.fixture
def vault(platform: Settings) -> Vault:
    """An empty vault."""
    return open_vault(platform)
