"""Personal data is declared once: what a type's declaration names, the ingest server takes out."""

from __future__ import annotations

from pathlib import Path

from engagement_platform.pii.declared import declarations
from engagement_platform.pii.redaction import redact
from engagement_platform.pipelines.games.registry import registry, with_personal_fields
from engagement_platform.settings import Settings

DECLARED = """
description = "A player skipped a level."
pii = ["/contact/email"]

[fields]
level_id = { type = "string", comment = "Which level." }
"""


def clean(settings: Settings, event: dict[str, object]) -> str:
    told = with_personal_fields(settings).pii
    rules = declarations(told.fields, told.safe, told.subject).rules(str(event["event_type"]))
    return repr(redact(event, rules, told.unknown, lambda value: "").clean)


def nested(pointer: str, value: str) -> dict[str, object]:
    event: object = value
    for step in reversed(pointer[1:].split("/")):
        event = [event] if step == "*" else {step: event}
    assert isinstance(event, dict)
    return event


def test_what_shipped_types_declare_is_taken_out_of_their_events() -> None:
    pointers = [(declared.name, pointer) for declared in registry().values() for pointer in declared.pii]
    assert len(pointers) > 10
    for event_type, pointer in pointers:
        event = {"event_type": event_type, "player_id": "p1", **nested(pointer, "a secret of mine")}
        assert "a secret of mine" not in clean(Settings(), event), (event_type, pointer)


def test_so_is_what_a_type_of_ones_own_declares_and_what_the_settings_add_to_it(tmp_path: Path) -> None:
    (tmp_path / "level_skip.toml").write_text(DECLARED)
    settings = Settings.model_validate(
        {"games": {"declarations": tmp_path}, "pii": {"fields": {"level_skip": "/nickname"}}}
    )
    event: dict[str, object] = {
        "event_type": "level_skip", "player_id": "p1", "level_id": "l1", "nickname": "Annie", "contact": {"email": "me"}
    }  # fmt: skip
    shown = clean(settings, event)
    assert "Annie" not in shown
    assert "'me'" not in shown
    assert "l1" in shown
