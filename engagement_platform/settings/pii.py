"""Personal data in game events."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from engagement_platform.settings.section import Section


class PiiSettings(Section):
    """Which fields of events are personal data, and how it is kept."""

    fields: dict[str, str] = Field(
        default_factory=dict,
        description="More fields that are personal data: event type, or `*` for all, to JSON pointers with blanks "
        "between them; `*` in a pointer stands for every element of a list and every key. Added to those that ship.",
    )
    safe: dict[str, str] = Field(
        default_factory=dict,
        description="Fields that are never looked at, in the same form, such as a version number like 1.2.3.4, which "
        "is taken for an IP address. What is declared in `fields` is taken out all the same.",
    )
    subject: str = Field(default="/player_id", description="JSON pointer to whom an event is about.")
    unknown: Literal["drop", "hash", "reject"] = Field(
        default="drop",
        description="A field that nobody declared and that looks like an e-mail or IP address, phone or card number: "
        "`drop` leaves it out, `hash` puts a keyed hash in its place (for joins), `reject` refuses the event.",
    )
    master_key_file: Path | None = Field(
        default=None,
        description="File with the master key, readable by its owner only; made when it is missing. Not set: "
        "<home>/pii/master.json. Keep a copy apart from the stores: without it nothing in the vault can be read.",
    )
    kms_key_id: str | None = Field(
        default=None, description="Key, alias or ARN of AWS KMS that wraps the keys instead of the file's."
    )
    raw_objects: Literal["rewrite", "leave"] = Field(
        default="rewrite",
        description="What an erasure does with raw events in `games.bucket`, and in the buckets of declared feeds: "
        "`rewrite` lists and reads every object below the prefix and writes those with events of the subject anew, "
        "`leave` does not look, and the receipt says so.",
    )
    purposes: str = Field(
        default="access-request, fraud, legal, support",
        description="What the vault may be read for, comma separated. Every read names one and is written down.",
    )
