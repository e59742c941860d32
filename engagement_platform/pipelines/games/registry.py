"""The declared types of events: one TOML file each, those that ship in `events/` and those of a folder of your own.

Reading and checking them only; what a declaration may say is `event_type`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.games.event_type import GROUP, EventType
from engagement_platform.settings import Settings

Registry = Mapping[str, EventType]
"""Types by name, in the order of their names."""


SHIPPED = Path(__file__).parent / "events"
"""Folder of the types that ship."""


class EventTypeRefused(PlatformError):
    """A declared type of event that cannot be one."""

    def __init__(self, file: str, why: str) -> None:
        self.file = file
        super().__init__(f"The declaration {file} cannot be used: {why}. Nothing was started. docs/games.md shows one.")


@cache
def registry(folder: Path | None = None) -> Registry:
    """All types: those that ship, and those declared in `folder`, of which one may stand for a shipped one.

    Raises EventTypeRefused. Read once for a process: a new declaration is seen by the next one.
    """
    own = {} if folder is None else read_folder(folder, "games.declarations")
    return dict(sorted({**read_folder(SHIPPED), **own}.items()))


def with_personal_fields(settings: Settings) -> Settings:
    """The settings, with the personal data of every declared type among `pii.fields`. Raises EventTypeRefused.

    For the ingest server, which takes it out of their events: an event that comes with personal data all the same is
    refused. What a JSON pointer stands for is the same in a declaration and in the settings.
    """
    fields = dict(settings.pii.fields)
    for declared in registry(settings.games.declarations).values():
        pointers = [fields[declared.name]] if declared.name in fields else []
        if declared.pii:
            fields[declared.name] = " ".join((*pointers, *declared.pii))
    return settings.model_copy(update={"pii": settings.pii.model_copy(update={"fields": fields})})


def read_folder(folder: Path, named_by: str = "", group: str = GROUP) -> Registry:
    """The types that a folder declares, one TOML file each. named_by: where it is set. Raises EventTypeRefused."""
    if not folder.is_dir():
        raise EventTypeRefused(str(folder), f"there is no such folder ({named_by})")
    found = (parse(str(file), file.read_text(encoding="utf-8"), group) for file in sorted(folder.glob("*.toml")))
    return {declared.name: declared for declared in found}


def parse(file: str, text: str, group: str = GROUP) -> EventType:
    """The type that a file declares; its name is the file's. Raises EventTypeRefused."""
    name = Path(file).stem
    try:
        declaration = tomllib.loads(text)
        if "group" in declaration:
            raise EventTypeRefused(file, "group: a type is of the group that its folder is read for")
        return EventType.model_validate({"name": name, **declaration, "group": group})
    except tomllib.TOMLDecodeError as error:
        raise EventTypeRefused(file, f"it is no TOML ({error})") from None
    except ValidationError as error:
        raise EventTypeRefused(file, what_is_wrong(error)) from None


def what_is_wrong(error: ValidationError, whole: str = "it") -> str:
    """Each field and what is wrong with it, in one line; no values. whole: what to call the model itself."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or whole}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    )
