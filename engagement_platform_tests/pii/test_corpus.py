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
from engagement_platform_tests.ingest_server.world import Server, event, key_for, server, stored, wait_until

CARDS = ("4111111111111111", "5500000000000004", "378282246310005", "6011000990139424", "4222222222222")
MAILS = ("bob.canary@example.org", "b+c@mail.example.co.uk")
PHONES = ("+49 30 1234567", "555-123-4567", "0171/1234567")
ADDRESSES = ("192.168.7.41", "2001:db8::ff00:42:8329")
WIDE = str.maketrans({chr(n): chr(n + 0xFEE0) for n in range(0x21, 0x7F)})
PHONE_NAMES = ("phone", "phoneNumber", "phone_number", "homePhone", "MobilePhone", "mobile", "mobileNumber",
               "msisdn", "tel", "telNr", "cell_phone", "sms", "whatsApp", "contactMobile", "mobile1", "mobileContact",
               "mobile_home", "mobile-number", "telno", "SMSNumber", "user.mobile", "contact.tel", "mobile.number",
               "Mobile Number", "\uff50\uff48\uff4f\uff4e\uff45", "mobile_primary", "mobile_personal", "mobileValue",
               "cellNumber", "contactNumber", "tel1", "telefon", "fax", "smartphoneNumber", "smartphone_number",
               "whatsapp_id", "whatsAppId", "wa_id", "contactmobile", "USERMOBILE", "hometel")  # fmt: skip
BEYOND_ASCII = (
    "\u0930\u093e\u092e@\u0909\u0926\u093e\u0939\u0930\u0923.\u092d\u093e\u0930\u0924",
    "\u0e04\u0e19@\u0e15\u0e31\u0e27\u0e2d\u0e22\u0e48\u0e32\u0e07.\u0e44\u0e17\u0e22",
    "bob.canary@example\u3002org",
    "bob.canary@exam\u200bple.org",
    "\u0634 +\u0664\u0669 \u0663\u0660 \u0661\u0662\u0663\u0664\u0665\u0666\u0667",
    "".join(chr(0x966 + int(digit)) for digit in CARDS[0]),
)
"""Labels of domains with vowel signs, an ideographic full stop, a blank of no width, digits of other scripts."""
BETWEEN = (
    "  ", "\t", "\n", ".", "\u2013", "_", " - ", "   ", "+", "\u2212", "/", ",", "|", ":", ";", "\u00b7", "\u2022",
    "\u200b", ", ", " / ", "    ",
)  # fmt: skip
WRITTEN_PHONES = (
    "06.12.34.56.78", "(555)-123-4567", "555-123-4567x12", "555-123-4567 ext. 12", "555 - 123 - 4567",
    "555\u2013123\u20134567", "(030)1234567", "00 49 30 1234567", "(11) 91234-5678", "8 (912) 345-67-89",
    "sms_+49301234567", "tel=%2B49+30+1234567",
)  # fmt: skip
WRITTEN_ADDRESSES = (
    "guest_203.0.113.7", "203.0.113.7_51234", "host.203.0.113.7",
    "ip:2001:db8::1", "2001:db8::1: is banned", "2001:db8:0:0:0:0:0:1:51234",
    "peer_2001:db8::1", "bob@[IPv6:2001:db8::1]",
)  # fmt: skip
IN_NAMES_OF_FILES = (
    "saves/bob.canary@example.org.json", "avatars/bob.canary@example.org.png",
    "avatars%2Fbob.canary%40example.org.png", "bob.canary@example.org-photo.png", "bob.canary@example.org_avatar.jpg",
    "https://x.org/bob.canary@example.org.html", "bob.canary@example.org.json:1:2", "bob.canary@example.org.min.js",
    "bob.canary@json.org.json", "bob.canary@mail.example.co.uk.tar.json",
    "bob.canary@\u0634.\u0634\u0628\u0643\u0629.png", "bob.canary@example.xn--p1ai.json", "bob.canary@example.de.plist",
)  # fmt: skip
NETWORKS = ("2200770123456784", "2204123456789012343", "9792000000000003", "5010000000000007", "6070000000000002",
            "6799990100000000019")  # fmt: skip
"""Mir, Troy, and issuers under 50, 60 and 67."""


def written(plain: str) -> list[str]:
    """A text as it may come: plain, full-width, percent-encoded, as escapes, in base64, within a sentence."""
    wide = plain.translate(WIDE)
    return [
        plain, wide, quote(plain, safe=""), "".join(f"%{byte:02x}" for byte in plain.encode()), quote(wide),
        *("".join(f"\\u{ord(each):04x}" for each in form) for form in (plain, wide)),
        base64.b64encode(plain.encode()).decode(),
        base64.urlsafe_b64encode(f"to {plain}".encode()).decode().rstrip("="),
        f"call {plain}, please",
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
        for between in BETWEEN:
            yield {"note": spaced.replace(" ", between)}
            yield {"note": f"card={spaced.replace(' ', between)}"}
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


def rarer_shapes() -> Iterator[dict[str, object]]:
    """The same, of senders that are fewer."""
    for text in (*BEYOND_ASCII, *WRITTEN_PHONES, *WRITTEN_ADDRESSES, *NETWORKS, '"bob smith"@example.org',
                 "41111111 11111111", "4111 11111111 1111", "4111-1111-1111-1111123",
                 "phone=555+123+4567&x=1"):  # fmt: skip
        yield {"note": text}
    for text in IN_NAMES_OF_FILES:
        yield {"note": text}
        yield {text: 1}
        yield {"by": {text: {"since": 3}}}
    for name in ("event_id", "player_id"):
        yield {name: "bob.canary@example.org.json"}
    for plain in (CARDS[0], *PHONES):
        bold = plain.translate({ord("0") + digit: chr(0x1D7CE + digit) for digit in range(10)})
        yield {"note": bold}
        yield {"note": json.dumps(bold)}
    for text in (*("5551234567x12", "5551234567_home", "home_5551234567", "tel5551234567", "5551-23-4567"),
                 *("98765 - 43210", "98765\u201343210", "98765,43210", "555_123_4567", "5551234567-home")):  # fmt: skip
        yield {"phones": text}
        yield {"phones": [text]}
        yield {"phones": [[text]]}
        yield {"phones": [{"value": text}]}
        yield {"phone_numbers": {"home": text}}
        yield {"contact": {"phones": {"primary": {"phone": text}}}}
        yield {"phones": {text: True}}
    for before in ("user_", "user-"):
        yield {"note": before + base64.b64encode(b"bob.canary@example.org").decode()}
    for name in ("event_id", "player_id", "orderRef"):
        yield {name: f"{CARDS[0]}1229"}


def shapes_in_base64() -> Iterator[dict[str, object]]:
    """Of bytes that are no text, in lines, with a word behind, cut."""
    for content in (b"bob.canary@example.org\0", "j\xf6rg@example.org".encode("latin-1"),
                    "bob.canary@example.org \U0001f468\u200d\U0001f469".encode()):  # fmt: skip
        yield {"note": base64.b64encode(content).decode()}
    for content in ("Gr\xf6\xdfe 4111111111111111".encode("latin-1"), b"\x08\x01\x12\x0fbob@example.org",
                    b"\x02card 4111111111111111\x03", b"a@b.co", b"\xff\xfe" + "bob@example.org".encode("utf-16-le"),
                    b"\x0a\x0b203.0.113.7\x12\x04\xff\xfe\xfd\xfc"):  # fmt: skip
        yield {"note": base64.b64encode(content).decode()}
        yield {"note": [base64.b64encode(content).decode().rstrip("=")]}
    for width in (64, 75, 76):
        for end in ("\n", "\r\n", "\n  "):
            for shift in range(width * 3 // 4 - 20, width * 3 // 4, 5):
                mime = base64.b64encode(b"x" * shift + b" bob.canary@example.org, " + b"y" * 90).decode()
                yield {"note": end.join(mime[at : at + width] for at in range(0, len(mime), width))}
                cut = mime.rstrip("=")[: shift // 3 * 4 + 60]
                for word in ("Hello", "Hello, you", "Bye"):
                    yield {"note": end.join([*(cut[at : at + width] for at in range(0, len(cut), width)), word])}
    for size in range(36, 44):
        yield {"note": base64.b64encode(b"bob.canary@example.org for you")[:size].decode()}


def shapes_of_cards() -> Iterator[dict[str, object]]:
    """Cards with other digits around them."""
    for digits in ("4111111111111111123", "4222222222222123", "14111111111111111", "12294111111111111111",
                   "3782822463100051234", "1378282246310005", "5500000000000004123"):  # fmt: skip
        yield {"note": digits}
        yield {"note": f"card {digits}"}
        yield {"amount": int(digits)}
    for text in ("41 11 11 11 11 11 11 11 12/29", "7 41 11 11 11 11 11 11 11", "411 111 111 111 1111 12/29",
                 "41-11-11-11-11-11-11-11 12/29 123", "12.4111 1111 1111 1111", "4111*1111*1111*1111",
                 '["4111","1111","1111","1111"]', "4111~1111~1111~1111", "4111 : 1111 : 1111 : 1111"):  # fmt: skip
        yield {"note": text}
    for text in ("1229 4111 1111 1111 1111", "12/2029 4111 1111 1111 1111", "4111 1111 1111 1111 1229 123",
                 "4111,1111,1111,1111,2029", "3782 822463 10005 1234", "3056-930902-5904", "4222.222.222.222",
                 "411111 1111111111", "6799 9901 0000 0000 019", "4111 1111-1111 1111", "41111111, 11111111",
                 "411111111111111112/29", "37828224631000512-29", "411111111111111112/2029 123"):  # fmt: skip
        yield {"note": text}
        yield {"orderRef": text}
    yield {"event_id": "12294111111111111111"}
    yield {"orderRef": "2912378282246310005"}


SHAPES = [*shapes(), *rarer_shapes(), *shapes_in_base64(), *shapes_of_cards()]
NEEDED = frozenset({"event_id", "event_type", "event_ts", "player_id"})
"""Fields that cannot be left out: an event with personal data there is refused."""


def test_nothing_of_any_shape_is_in_a_byte_that_is_kept_logged_or_counted(platform: Settings) -> None:
    assert len(SHAPES) >= 200
    encoded = needles()
    key = key_for(platform.home, "puzzle")
    sent = [{**event(f"e-{number}", player_id="p-1"), **shape} for number, shape in enumerate(SHAPES)]
    parts = [sent[at : at + 500] for at in range(0, len(sent), 500)]  # as many as a request may have
    taken = sum(NEEDED.isdisjoint(shape) for shape in SHAPES)

    def accepted(running: Server) -> int:
        return sum(running.post(key, part).said["accepted"] for part in parts)

    def shown(running: Server) -> bytes:
        return running.call("GET", "/metrics").body + running.stop()[1].encode()

    with server(platform.home, INGEST_SERVER__SEGMENT_AGE="PT1H") as running:
        assert accepted(running) == taken
        assert places_with([platform.home], encoded) == [], "in the spool"
        said = shown(running)
    with server(platform.home, INGEST_SERVER__SEGMENT_AGE="PT1S") as running:
        assert accepted(running) == taken
        wait_until(lambda: b"ingest_spool_bytes 0.0" in running.call("GET", "/metrics").body, "it was not delivered")
        said += shown(running)
    assert places_with([platform.home], encoded) == []
    assert [each for each in encoded if each in said] == []


def needles() -> list[bytes]:
    """What names somebody in any shape, as it is and as JSON writes it."""
    found = {text for shape in SHAPES for text in found_in(shape)}
    return sorted({form.encode() for each in found for form in (each, json.dumps(each)[1:-1])})


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


WINDOWS = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0"
BROWSERS = (
    f"{WINDOWS} Safari/537.36",
    f"{WINDOWS} Safari/537.36 Edg/131.0.0.0",
    "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14.7; rv:132.0) Gecko/20100101 Firefox/132.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/604.1",
)


def clean_event(number: int, dice: random.Random) -> dict[str, object]:
    """One with some forty fields of what games send, none of them about a person."""
    token = f"{dice.getrandbits(128):032x}"
    as_uuid = f"{token[:8]}-{token[8:12]}-4{token[13:16]}-a{token[17:20]}-{token[20:]}"
    return {
        "event_id": as_uuid if number % 2 else str(dice.getrandbits(63)),
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
        "user_agent": BROWSERS[number % len(BROWSERS)], "guild_id": dice.getrandbits(63),
        "orderRef": str(dice.getrandbits(63)), "friend_ids": [dice.getrandbits(63), str(dice.getrandbits(63))],
        "phone_use": {"seen_ms": 1_760_000_000_000 + dice.randrange(10**10), "os_build": 20_261_122, "uses": 1_234_567},
        "phone_verified_at": 1_760_000_000 + dice.randrange(10**8), "phoneHash": token,
        "megaphone": dice.randrange(10**9), "serial": f"00{dice.randrange(10**11):011}",
        "replay": f"/replays/0{dice.randrange(1000):03}/{dice.randrange(10**7):07}", "season": "01/2026-12/2026",
        "gold": f"+1{dice.randrange(10**7):07}", "spot": f"+{dice.random() * 90:.6f}", "sprite": "hero@2x.png",
        "stack": "render@index.android.bundle:1:2345\nvalue@app.js:9:1", "class": "Cafe::Bad",
        "network": "10.0.0.0",
    }  # fmt: skip


def test_of_clean_events_less_than_one_in_two_hundred_loses_a_field() -> None:
    dice, rules = random.Random(7), Declarations({}).rules("x")  # the same corpus every time
    events = (clean_event(number, dice) for number in range(4_000))
    wrong = sum(bool(redact(event, rules, "drop", str).findings) for event in events)
    assert wrong / 4_000 < 0.005


def test_clean_events_arrive_as_they_were_sent_but_for_less_than_one_in_two_hundred(platform: Settings) -> None:
    """Beside a declared value, which is looked for in all other fields."""
    dice, key = random.Random(7), key_for(platform.home, "puzzle")
    sent = [clean_event(number, dice) | {"email": f"x{number}@example.org"} for number in range(4_000)]
    with server(platform.home, INGEST_SERVER__STOP_WITHIN="PT200S") as running:
        assert {running.post(key, sent[at : at + 500]).status for at in range(0, len(sent), 500)} == {200}
        assert running.stop()[0] == 0
    arrived = {each["event_id"]: each for each in stored(platform.home / "games")}

    def is_whole(event: dict[str, object]) -> bool:
        there = arrived.get(event["event_id"], {})
        return all(there.get(name) == value for name, value in event.items() if name != "email")

    assert 1 - sum(map(is_whole, sent)) / len(sent) < 0.005
    assert not any("email" in each for each in arrived.values())
