"""Shapes in which personal data hides, each sent as an event and searched for in every byte that is kept."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from engagement_platform.pii.declared import Declarations
from engagement_platform.pii.redaction import redact
from engagement_platform.settings import Settings
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.ingest_server.world import event, key_for, server, wait_until

CARDS = ("4111111111111111", "5500000000000004", "378282246310005", "6011000990139424", "4222222222222")
MAILS = ("bob.canary@example.org", "b+c@mail.example.co.uk")
PHONES = ("+49 30 1234567", "555-123-4567", "0171/1234567")
ADDRESSES = ("192.168.7.41", "2001:db8::ff00:42:8329")
WIDE = str.maketrans({chr(n): chr(n + 0xFEE0) for n in range(0x21, 0x7F)})
PHONE_NAMES = ("phone", "phoneNumber", "phone_number", "homePhone", "MobilePhone", "mobile", "mobileNumber",
               "msisdn", "tel", "telNr", "cell_phone", "sms", "whatsApp", "contactMobile", "mobile1", "mobileContact",
               "mobile_home", "mobile-number", "telno", "SMSNumber")  # fmt: skip


def written(plain: str) -> list[str]:
    """A text as it may come: plain, full-width, percent-encoded, as escapes, in base64, within a sentence."""
    return [
        plain, plain.translate(WIDE), quote(plain, safe=""), "".join(f"%{byte:02x}" for byte in plain.encode()),
        "".join(f"\\u{ord(each):04x}" for each in plain), base64.b64encode(plain.encode()).decode(),
        base64.urlsafe_b64encode(f"to {plain}".encode()).decode().rstrip("="), f"call {plain}, please",
    ]  # fmt: skip


def shapes() -> Iterator[dict[str, object]]:
    """Fields of events, one shape each."""
    for plain in (*CARDS, *MAILS, *PHONES, *ADDRESSES):
        for text in written(plain):
            yield {"note": text}
    for card in CARDS:
        spaced = " ".join(card[at : at + 4] for at in range(0, len(card), 4))
        for text in (f"{card} 12/29 123", f"{card} 123", f"1 {spaced} 7", f"12/29 {card}", f"{card}:12/29:123",
                     f"id {spaced} 12 29 123", f"{spaced} 12/29", f"{card},{card}", f"{card}.50",
                     f"{card.translate(WIDE)} 12/29", f"{card}1229", f"{card}202912", f"{card}1229123",
                     f"9876543{card}0000000", f"id-{'7' * 40}{card}", f"{card}{'0' * 30}", f"Visa{card} 12/29",
                     f"card{card}-123", f"PAN{spaced} 12/29", f"_{card} 123", f"{card}.12/29"):  # fmt: skip
            yield {"note": text}
        for between in ("  ", "\t", "\n", ".", "\u2013", "_"):
            yield {"note": spaced.replace(" ", between)}
        yield {"amount": int(f"{card}1229")}
        yield {"amount": int(f"{card}1229123")}
        yield {"amount": float(card) + 0.5}
        yield {"event_type": f"buy_{card}"}
        yield {"amount": int(card)}
        yield {"amount": [float(card)]}
        yield {f"card {card}": 1}
    for name in PHONE_NAMES:
        yield {name: "5551234567"}
        yield {name: 5551234567}
        yield {name: ["5551234567"]}
        yield {name: {"home": "5551234567"}}
        yield {name: ["call 5551234567"]}
        yield {name: [{"value": "5551234567 home"}]}
    yield {"event_ts": "2026-11-22T10:00:00.4111111111111111Z"}
    yield {"event_ts": "2026-11-22T10:00:00,4111111111111111+00:00"}
    yield {"note": "bob@mu\u0308ller.example"}
    yield {"note": base64.b64encode(b"10.0.0.1").decode()}
    yield {"note": f"/v1/{base64.b64encode(b'bob.canary@example.org').decode()}"}
    yield {"phones": ["tel:5551234567"]}
    yield {"phones": {"5551234567": True}}
    yield {"note": base64.b64encode(b"bob.canary@example.org\n").decode()}
    for name in ("event_id", "player_id"):
        yield {name: "4111111111111111 12/29"}
    yield {"phones": [{"value": 5551234567}]}
    yield {"phone_numbers": {"home": "5551234567", "work": ["5559876543"]}}
    for plain in (*MAILS, *ADDRESSES):
        yield {"by": {plain: {"since": 3}}}
        yield {"list": [["ok", {"deep": [plain]}]]}


SHAPES = list(shapes())


def test_nothing_of_any_shape_is_in_a_byte_that_is_kept_logged_or_counted(platform: Settings) -> None:
    assert len(SHAPES) >= 200
    needles = {text for shape in SHAPES for text in found_in(shape)}
    encoded = sorted({form.encode() for each in needles for form in (each, json.dumps(each)[1:-1])})
    key = key_for(platform.home, "puzzle")
    sent = [{**event(f"e-{number}", player_id="p-1"), **shape} for number, shape in enumerate(SHAPES)]
    with server(platform.home, INGEST_SERVER__SEGMENT_AGE="PT1H") as running:
        assert running.post(key, sent).status < 300
        assert places_with([platform.home], encoded) == [], "in the spool"
        running.stop()
    with server(platform.home, INGEST_SERVER__SEGMENT_AGE="PT1S") as running:
        assert running.post(key, sent).status < 300
        wait_until(lambda: b"ingest_spool_bytes 0.0" in running.call("GET", "/metrics").body, "it was not delivered")
        figures = running.call("GET", "/metrics").body
        _, said = running.stop()
    assert places_with([platform.home], encoded) == []
    assert [each for each in encoded if each in figures + said.encode()] == []


def found_in(value: object) -> Iterator[str]:
    """Texts that name somebody: everything of a shape but words, and names of fields."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from found_in(each)
            yield from found_in("" if key in PHONE_NAMES else key)
    elif isinstance(value, list):
        for each in value:
            yield from found_in(each)
    elif len(text := str(value)) > 5 and (any(map(str.isdigit, text)) or "@" in text or len(text) > 20):
        yield text


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_each_shape_is_found(shape: dict[str, object]) -> None:
    made = redact({"event_type": "x", **shape}, Declarations({}).rules("x"), "drop", str)
    assert made.findings


def test_of_clean_events_less_than_one_in_two_hundred_loses_a_field() -> None:
    dice, rules = random.Random(7), Declarations({}).rules("x")  # the same corpus every time
    wrong = 0
    for number in range(4_000):
        token = f"{dice.getrandbits(128):032x}"
        clean = {
            "event_id": f"{token[:8]}-{token[8:12]}-4{token[13:16]}-a{token[17:20]}-{token[20:]}",
            "event_type": "x", "event_ts": f"2026-11-22T10:{number % 60:02}:00.{dice.randrange(10**6):06}Z",
            "player_id": f"p-{dice.randrange(10**9)}", "session": token, "level": dice.randrange(500),
            "score": dice.randrange(10**7), "at_ms": 1_760_000_000_000 + dice.randrange(10**10),
            "build": f"v1.{dice.randrange(99)}.{dice.randrange(999)}", "price": f"{dice.randrange(99)}.99 EUR",
            "position": [dice.random() * 1000, dice.random()], "mobile": dice.random() < 0.5,
            "token": base64.b64encode(dice.randbytes(24)).decode(), "map": "Forest of 7 Winds",
            "progress": f"{dice.randrange(100)}%", "day": f"2026-{1 + number % 12:02}-{1 + number % 28:02}",
            "iphone": {"build": token, "at_ms": 1_760_000_000_000}, "hotel": "Grand Hotel 1234567",
            "telemetry_id": dice.randrange(10**8),
            "message": str(snowflake := (1_760_000_000_000 + dice.randrange(10**10)) << 22 | dice.getrandbits(22)),
            "message_number": snowflake, "greatest": 1.7976931348623157e308,
            "stamp": f"20261122{dice.randrange(10**12):012}",
            "at": f"{dice.random() * 90:.6f} {dice.random() * 180:.6f}",
            "path": f"/levels/{dice.randrange(10**6)}/replays/{token[:12]}", "ratio": f"{dice.random()}",
        }  # fmt: skip
        wrong += bool(redact(clean, rules, "drop", str).findings)
    assert wrong / 4_000 < 0.005
