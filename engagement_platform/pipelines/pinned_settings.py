"""Settings that decide what becomes of a record: written into a batch's manifest, and read from it by a resume.

Each job names the sections that decide; how they are kept is the engine's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engagement_platform.engine.model import Manifest
from engagement_platform.settings import Settings


def that_decide(settings: Settings, *sections: str, **fields: Sequence[str]) -> dict[str, object]:
    """Whole sections, and of others the named fields, as JSON has them, for `MicroBatchJob.decides`."""
    whole: dict[str, object] = {name: getattr(settings, name).model_dump(mode="json") for name in sections}
    some = {name: getattr(settings, name).model_dump(mode="json", include=set(of)) for name, of in fields.items()}
    return whole | some


def as_pinned(settings: Settings, manifest: Manifest) -> Settings:
    """The settings with everything that the manifest pins replaced by the manifest's values."""
    update = {}
    for name, pinned in manifest.settings.items():
        if name in Settings.model_fields and isinstance(pinned, Mapping):
            section = getattr(settings, name)
            update[name] = type(section).model_validate({**section.model_dump(), **pinned})
    return settings.model_copy(update=update)
