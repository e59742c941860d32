"""What the ingest server is told of declared types: their personal data, which it takes out of their events.

One list would otherwise be kept in two places; an event that comes with personal data all the same is refused.
"""

from __future__ import annotations

from engagement_platform.pipelines.games.registry import registry
from engagement_platform.settings import Settings


def with_personal_fields(settings: Settings) -> Settings:
    """The settings, with the personal data of every declared type among `pii.fields`. Raises EventTypeRefused.

    What a JSON pointer stands for is the same in a declaration and in the settings.
    """
    fields = dict(settings.pii.fields)
    for declared in registry(settings.games.declarations).values():
        said = [fields[declared.name]] if declared.name in fields else []
        if declared.pii:
            fields[declared.name] = " ".join((*said, *declared.pii))
    return settings.model_copy(update={"pii": settings.pii.model_copy(update={"fields": fields})})
