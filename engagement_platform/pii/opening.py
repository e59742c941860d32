"""The parts that keep personal data, opened from settings and put together."""

from __future__ import annotations

from engagement_platform.pii.database import open_pii
from engagement_platform.pii.keys import Keyring
from engagement_platform.pii.master import Masters
from engagement_platform.pii.vault import Vault
from engagement_platform.settings import Settings


def open_vault(settings: Settings) -> Vault:
    """The vault of the lake that settings name, with its keys. Raises StoresUnavailable, StoresTooNew."""
    return Vault(settings, Keyring(open_pii(settings.store_url), Masters(settings)))
