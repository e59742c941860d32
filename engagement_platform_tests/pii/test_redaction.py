"""What is taken out of an event, what is found in it that nobody declared, and what must never be touched."""

from __future__ import annotations

import ipaddress
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import cast
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engagement_platform.pii.cards import luhn
from engagement_platform.pii.declared import Declarations, PiiDeclarationRefused, declarations, parts, pointer_to
from engagement_platform.pii.detection import Kind, looks_like, number_looks_like
from engagement_platform.pii.names import Rule, rules
from engagement_platform.pii.redaction import Policy, Redacted, _Automaton, redact
from engagement_platform_tests.growth import characters_given, cpu_seconds

DECLARED = Declarations(
    fields={
        "*": ["/email", "/player/name"],
        "invite": ["/to/*/phone", "/by_code/*/mail", "/secret"],
    },
    safe={"*": ["/version"], "invite": ["/numbers"]},
)
EVENT = {"event_id": "e-1", "event_type": "invite", "event_ts": "2026-11-22T10:00:00Z", "player_id": "p-1"}


def taken(event: Mapping[str, object], unknown: Policy = "drop", declared: Declarations = DECLARED) -> Redacted:
    return redact(event, declared.rules(str(event["event_type"])), unknown, lambda text: f"hmac:{len(text)}")


def leaves(value: object) -> Iterator[tuple[bool, object]]:
    """(whether it is a key, what it is) of every key and every value that is neither object nor list."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield True, key
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield False, value


def test_a_pointer_may_name_one_element_of_a_list() -> None:
    rules = Declarations({"x": ["/devices/0/owner", "/tags/1"]}).rules("x")
    event = {
        "event_type": "x",
        "devices": [{"owner": "ann smith", "os": 1}, {"owner": "nobody"}],
        "tags": ["first", "secret", "third"],
        "note": "a secret",
    }
    made = redact(event, rules, "drop", str)
    left = {"event_type": "x", "devices": [{"os": 1}, {"owner": "nobody"}], "tags": ["first", None, "third"]}
    assert made.clean == left
    assert [one.path for one in made.values] == ["/devices/0/owner", "/tags/1"]


def test_declared_fields_leave_and_come_back_by_path() -> None:
    event = {
        **EVENT,
        "email": "bob@example.org",
        "to": [{"phone": "+49 30 1234567", "level": 3}, {"level": 4}, {"phone": None}],
        "by_code": {"x/y": {"mail": "a@b.example", "n": 1}},
        "secret": {"any": ["thing"]},
    }
    done = taken(event)
    assert done.clean == {**EVENT, "to": [{"level": 3}, {"level": 4}, {}], "by_code": {"x/y": {"n": 1}}}
    assert {(value.declared, value.path): value.value for value in done.values} == {
        ("/email", "/email"): "bob@example.org",
        ("/to/*/phone", "/to/0/phone"): "+49 30 1234567",
        ("/to/*/phone", "/to/2/phone"): None,
        ("/by_code/*/mail", "/by_code/x~1y/mail"): "a@b.example",
        ("/secret", "/secret"): {"any": ["thing"]},
    }
    assert done.findings == ()
    assert event["email"] == "bob@example.org", "the event that was given is not changed"


def test_fields_of_every_type_are_taken_out_of_unknown_types_too() -> None:
    done = taken({**EVENT, "event_type": "never_seen", "player": {"name": "Bob", "level": 1}, "secret": "kept"})
    assert done.clean == {**EVENT, "event_type": "never_seen", "player": {"level": 1}, "secret": "kept"}


@pytest.mark.parametrize("unknown", ["drop", "hash", "reject"])
def test_what_looks_like_personal_data_is_treated_by_policy(unknown: Policy) -> None:
    done = taken({**EVENT, "note": "mail me: bob@example.org", "list": ["10.1.2.3", "fine"], "n": 4}, unknown)
    assert [(found.kind, found.path) for found in done.findings] == [(Kind.EMAIL, "/note"), (Kind.IP, "/list/0")]
    if unknown == "reject":
        assert done.refused_by(unknown) == done.findings[0]
    else:
        assert done.refused_by(unknown) is None
        expected = {"list": ["fine"]} if unknown == "drop" else {"note": "hmac:24", "list": ["hmac:8", "fine"]}
        assert done.clean == {**EVENT, **expected, "n": 4}


def test_names_of_fields_are_looked_at_too() -> None:
    done = taken({**EVENT, "friends": {"bob@example.org": {"since": 3}, "p-2": {"since": 4}}})
    assert done.clean == {**EVENT, "friends": {"p-2": {"since": 4}}}
    assert taken({**EVENT, "friends": {"bob@example.org": 1}}, "hash").clean["friends"] == {"hmac:15": 1}
    done = taken({**EVENT, "by_code": {"bob@example.org": {"mail": "x", "n": 1}, "x": {"mail": "y", "n": 2}}})
    assert done.clean == {**EVENT, "by_code": {"x": {"n": 2}}}, "`*` declares no names"
    assert [value.value for value in done.values] == ["x", "y"]


def test_safe_fields_are_not_looked_at_and_what_is_declared_below_them_leaves() -> None:
    declared = Declarations({"*": ["/numbers/mail"]}, {"*": ["/numbers"]})
    done = taken({**EVENT, "numbers": {"v": "1.2.3.4", "mail": "x"}}, declared=declared)
    assert done.clean == {**EVENT, "numbers": {"v": "1.2.3.4"}}
    assert done.findings == ()


@pytest.mark.parametrize("name", ["event_id", "player_id"])
def test_personal_data_where_an_id_belongs_refuses_the_event_under_every_policy(name: str) -> None:
    for said in ({name: "bob@example.org"}, {name: "Bob the Great", "player": {"name": "bob the great"}}):
        refused = taken({**EVENT, **said}).refused_by("drop")
        assert refused is not None
        assert refused.path == f"/{name}"


@pytest.mark.parametrize("fraction", [".001234-0500", ",001234567-05:00", ".004111111-0200"])
def test_no_time_is_a_phone_number_by_its_offset(fraction: str) -> None:
    assert taken({**EVENT, "event_ts": f"2026-11-22T10:00:00{fraction}"}).findings == ()


def test_a_declared_value_is_looked_for_in_all_other_fields() -> None:
    event = {**EVENT, "player": {"name": "Grünwald"}, "title": "Hail GRÜNWALD the 3rd", "grünwald": 1, "map": "Wald"}
    done = taken(event)
    assert done.clean == {**EVENT, "player": {}, "map": "Wald"}
    assert {found.kind for found in done.findings} == {Kind.COPY}
    assert taken({**EVENT, "email": 5551234, "n": 5551234, "m": 55512340}).clean == {**EVENT, "m": 55512340}


@pytest.mark.parametrize(
    "text",
    [
        "a%20Canary",
        "a \uff23anary",
        "a \\u0043anary",
        "YSBDYW5hcnk=",
        "/v1/WW9lIGEgQ2FuYXJ5",
        "hi\nYSBDYW5hcnk=",
        '"\x01YSBDYW5hcnk=',
        "AWEgQ2FuYXJ5Ag==",  # between control characters
        "\\ud835\\udc00 Canary",
        "3yBhIENhbmFyeQ==",  # in ISO 8859-1
        "YSBDYW5hcnkgZmxpZ",  # cut
    ],
)
def test_a_declared_value_is_found_also_where_it_stands_encoded(text: str) -> None:
    done = taken({**EVENT, "player": {"name": "A Canary"}, "seen": [text, "by others"]})
    assert done.clean == {**EVENT, "player": {}, "seen": ["by others"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Gr\u00fcnwald", "saves/Gru\u0308nwald.sav"),
        ("Gru\u0308nwald", "GR\u00dcNWALD"),
        ("\uff22\uff4f\uff42\uff42\uff59", "hail bobby"),
        ("Bobby", "\uff22\uff2f\uff22\uff22\uff39 hails"),
        ("\u0e01\u0e33\u0e25\u0e31\u0e07", "by \u0e01\u0e33\u0e25\u0e31\u0e07"),
        ("a\u0336b\u0336", "by a\u0336b\u0336"),
    ],
)
def test_a_declared_value_is_found_in_any_unicode_form(name: str, text: str) -> None:
    done = taken({**EVENT, "player": {"name": name}, "note": text, text: 1, name: 1, "seen": "by able others"})
    assert done.clean.items() >= {**EVENT, "player": {}, "seen": "by able others"}.items()
    assert not {"note", name} & done.clean.keys()


def test_a_coarse_place_or_a_price_takes_nothing_with_it_and_an_exact_one_is_found() -> None:
    event = {**EVENT, "agent": "AppleWebKit/537.36", "price": "37.30 EUR", "move": "-121.95"}
    assert taken({**event, "secret": {"latitude": 37.3, "longitude": -121.9, "sum": "+37."}}).clean == event
    assert taken({**EVENT, "secret": -121.9533, "note": "at -121.9533, about"}).clean == EVENT


def test_what_was_hashed_stays_as_it_is() -> None:
    """In a pass over what another has made, and where a declared value is in a hash by chance."""

    def hashed(event: Mapping[str, object]) -> dict[str, object]:
        rules = DECLARED.rules("invite")
        return redact(event, rules, "hash", lambda text: f"hmac:{sha256(text.encode()).hexdigest()[:32]}").clean

    event = {**EVENT, "phone": "+49 30 1234567", "friends": {"bob@example.org": {"tel": ["+49 30 1234567"]}}}
    once = hashed(event)
    assert hashed(once) == once
    assert str(once["phone"]) in str(once["friends"]), "equal values stay equal"
    for name in ("hmac", str(once["phone"])[5:11]):
        assert hashed({**event, "player": {"name": name}}) == {**once, "player": {}}
        assert str(hashed({**event, "player": {"name": name}, "note": f"by {name}"})["note"]).startswith("hmac:")


def test_time_goes_with_the_length_of_an_event_however_many_values_are_declared() -> None:
    def take(values: int) -> None:
        notes = [f"{'a' * 40}c{n}" for n in range(values)]
        event = {**EVENT, "secret": [f"{'a' * 40}b{n}" for n in range(values)], "note": [f"{'a' * 40}b0", *notes]}
        assert taken(event).clean["note"] == notes

    # Twenty times as long; pairs of values and texts are four hundred times as many.
    assert cpu_seconds(lambda: take(4_000)) < 60 * cpu_seconds(lambda: take(200))


def nested(names: Sequence[str], bottom: object) -> object:
    """An object of one field, whose value is an object of one field, and so on down to the bottom."""
    return bottom if not names else {names[0]: nested(names[1:], bottom)}


@pytest.mark.parametrize("word", ["a", "phone"])
@pytest.mark.parametrize(
    "many",
    [
        *(["1"] * 900, [{}] * 900, [[]] * 900, [[["1"]]] * 300, [{"n": "1", "to": {"x": 5551234567}}] * 300),
        *({f"k{n}": "1" for n in range(900)}, {f"k{n}": {"n": ["1"]} for n in range(300)}, ["bob@example.org"] * 900),
    ],
    ids=range(8),
)
def test_a_name_is_read_once_however_much_is_below_it(word: str, many: object) -> None:
    names = [f"{letter * 10_000}{word}" for letter in "abc"]
    event = {**EVENT, "secret": "a canary", "note": "A Canary", names[0]: [nested(names, many)]}
    given = characters_given(lambda: taken(event), "engagement_platform.pii")
    # Each text is looked for a dozen of things; were a name read again for all below it, this would be hundreds.
    assert given < 80 * len(json.dumps(event))


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1), st.text("abc"))
def test_many_texts_are_found_at_once_where_one_after_the_other_is(texts: list[str], within: str) -> None:
    assert _Automaton(texts).within(within) is any(text in within for text in texts)


def test_a_short_declared_value_takes_nothing_else_with_it() -> None:
    event = {**EVENT, "player": {"name": "Al"}, "map": "Alps", "email": "12345", "n": 12345}
    assert taken(event).clean == {**EVENT, "player": {}, "map": "Alps", "n": 12345}


NAMES = st.sampled_from(
    ["email", "note", "to", "phone", "player", "name", "secret", "by_code", "mail", "numbers", "x/~"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
DECLARED_NAMES = {"secret", "player", "name", "to", "phone"}
CANARIES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=4, max_size=20)


def planted(value: object, canary: str) -> object:
    """The value with the canary in every text of it."""
    if isinstance(value, dict):
        return {key: planted(each, canary) for key, each in value.items()}
    if isinstance(value, list):
        return [planted(each, canary) for each in value]
    return f"{value} {canary}" if isinstance(value, str) else value


@given(st.dictionaries(NAMES, JSON, max_size=6), CANARIES, st.sampled_from(["drop", "hash"]))
@example({}, "PLAYER", "drop")
@settings(deadline=None, max_examples=150)
def test_no_declared_value_survives_anywhere(body: dict[str, object], canary: str, unknown: Policy) -> None:
    declared = Declarations({"*": ["/secret", "/player/name", "/to/*/phone"]})
    hidden = {"secret": {"a": [canary]}, "player": {"name": canary}}
    event = {**cast(dict[str, object], planted(body, canary)), **hidden, **EVENT}
    done = redact(event, declared.rules("invite"), unknown, lambda _text: "hmac:0")
    needle = canary.strip().casefold()
    if sum(map(str.isdigit, needle)) < 6 if re.fullmatch(r"[+-]?\d*\.?\d*", needle) else len(needle) < 4:
        return
    for is_key, leaf in leaves({key: value for key, value in done.clean.items() if key not in EVENT}):
        if isinstance(leaf, str) and leaf != "hmac:0":
            # A name that is declared says nothing of the event, also where a value is the same word.
            survives = leaf.casefold() == needle and leaf not in DECLARED_NAMES if is_key else needle in leaf.casefold()
            assert not survives


@given(st.dictionaries(NAMES, JSON, max_size=6), st.uuids(), st.sampled_from(["drop", "hash"]))
@settings(deadline=None, max_examples=150)
def test_no_byte_of_a_declared_value_is_in_the_clean_event(
    body: dict[str, object], unique: UUID, unknown: Policy
) -> None:
    canary = f"canary-{unique.hex}"
    event = {**cast(dict[str, object], planted(body, canary)), "player": {"name": canary}, **EVENT}
    done = redact(event, DECLARED.rules("invite"), unknown, lambda _text: "hmac:0")
    assert done.clean.items() >= EVENT.items()
    safe = done.clean.pop("numbers", None)
    assert canary.encode() not in json.dumps(done.clean, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert safe is None or "numbers" in body, "only a field that was declared safe keeps one"


@given(st.dictionaries(st.text(max_size=4), st.integers(0, 999) | st.sampled_from(["ok", "level up", "x" * 9])))
@settings(deadline=None)
def test_an_event_without_personal_data_stays_as_it_is(body: dict[str, object]) -> None:
    event = {**{f"k{key}": value for key, value in body.items() if "@" not in key}, **EVENT}
    done = taken(event)
    assert (done.clean, done.values, done.findings) == (event, (), ())


LOOK: Mapping[Kind, Sequence[str]] = {
    Kind.EMAIL: (
        "bob@example.org", "write to bob.meier+x@mail.example.co.uk now", "bob%40example.org", "jörg@müller.de",
    ),
    Kind.IP: ("192.168.0.1", "from 8.8.8.8:443.", "2001:db8::ff00:42:8329", "peer [fe80::1]", "::ffff:10.0.0.1"),
    Kind.CARD: ("4111 1111 1111 1111", "card 5500-0000-0000-0004 ok", "378282246310005"),
    Kind.PHONE: (
        "+49 (0)30 123-4567", "+15551234567", "call 555-123-4567", "(555) 123-4567", "0049 30 1234567", "030 1234567",
        "01 23 45 67 89",
    ),
}  # fmt: skip
NO_LOOK = [
    "", "level 12", "2026-11-22", "2026-11-22T10:00:00.123456+01:00", "10:20:30", "22.11.2026", "01-02-2024",
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "1763805600000", "1763805600", "1.2.3", "v1.22.333", "4111111111111112",
    "p-000000012345", "@everyone", "a@b", "std::vector", "00:1A:2B:3C:4D:5E", "1,234,567.89", "+5 levels", "::",
    "300.300.300.300", "1234-5678", "0.123456789012345", "100000000001", "20:15 on 03.04.2026 at 10 am",
    "52.520008 13.404954", "a.b_c-d 12 34 56", "98765 43210", "612 345 678", "+52.520008,+13.404954", "+10000000",
    "00123456789", "/replays/0123/4567890", "01/2026-12/2026", "a::b", "Cafe::Bad", "Chrome/131.0.0.0 Safari/537.36",
    "1.4111111111111111", "0004111111111111111", "hero@2x.png", "render@index.android.bundle:1:2", "value@app.js",
    "value@app.min.js:9:1", "icons/hero@2x.dark.png", "hero@3x.en.webp?v=1", "main@index.ios.bundle", "a@b.json",
    "value@vendor.chunk.js:2:1", "t@main.abcdef12.js:1:2", "main.dart@app.dart.js", "e@unity.loader.js:1",
    "e@Build.framework.js", "e@game.wasm.js", "e@Build.framework.js.gz", "render@bundle.abc.js", "a@hud.button.png",
    "icon@dark.large.png", "icon@menu.hd.png", "onPress@main.jsbundle:1234:56", "hero@2x.plist", "hero@2x.atlas",
    "hero@2x.pvr.ccz", "hero@dark.fnt", "theme@boss.mp3", "t@2.de12cd34.bundle.js",
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for kind, texts in LOOK.items() for text in texts])
def test_what_looks_like_personal_data_is_found(text: str, kind: Kind) -> None:
    assert looks_like(text) is kind


@pytest.mark.parametrize("text", NO_LOOK)
def test_ordinary_texts_are_left_alone(text: str) -> None:
    assert looks_like(text) is None


def test_a_field_called_phone_is_one_also_without_separators() -> None:
    assert looks_like("5551234567", rules("phone_number")[0]) is Kind.PHONE
    assert number_looks_like(5551234567, rules("msisdn")[0]) is Kind.PHONE
    assert looks_like("5551234567", rules("score")[0]) is None
    assert number_looks_like(4111111111111111) is Kind.CARD


@given(st.ip_addresses(), st.sampled_from(["{}", "from {} today", "[{}]", "ip={}"]))
@example(ipaddress.IPv4Address("10.0.1.0"), "{}")
@example(ipaddress.IPv6Address("fdff:ffff:ffff:ffff:ffff:ffff:ffff:fffa"), "{}")  # without a digit
@settings(deadline=None)
def test_every_ip_address_is_found(address: ipaddress.IPv4Address | ipaddress.IPv6Address, around: str) -> None:
    # Nobody's: a network, or the version of a browser; and what has letters only may be a name of C++.
    nobodys = str(address).endswith(".0.0") or ("::" in str(address) and not any(map(str.isdigit, str(address))))
    assert looks_like(around.format(address)) is (None if nobodys else Kind.IP)


@given(st.text("0123456789", min_size=21, max_size=60))
@example("9" * 8 + "30569309025904" + "0" * 7)  # a card of fourteen digits
@settings(deadline=None)
def test_in_a_run_longer_than_ids_every_window_of_13_to_19_digits_is_looked_at(run: str) -> None:
    windows = (run[at : at + size] for size in range(13, 20) for at in range(len(run) - size + 1))
    assert (looks_like(run) is Kind.CARD) is any(looks_like(window) is Kind.CARD for window in windows)


@given(st.integers(10**14, 10**15 - 1))
def test_a_number_passes_luhn_with_exactly_one_check_digit(number: int) -> None:
    assert sum(luhn(f"{number}{digit}") for digit in range(10)) == 1


@pytest.mark.parametrize("name", ["event_id", "playerId", "guild_ids", "order-ref", "api.key", "uuid"])
def test_a_number_as_long_as_ids_is_a_card_in_a_field_for_ids_only_with_its_expiry_behind_it(name: str) -> None:
    card, with_expiry = "4000000000000000006", "41111111111111111229"
    assert (luhn(card), len(card)) == (True, 19)
    rule = rules(name)[0]
    assert (looks_like(card, rule), number_looks_like(int(card), rule)) == (None, None)
    assert (looks_like(with_expiry, rule), number_looks_like(int(with_expiry), rule)) == (Kind.CARD, Kind.CARD)
    for other in (rules("note")[0], rules("paid")[0], rules("keyboard")[0]):
        assert (looks_like(card, other), number_looks_like(int(card), other)) == (Kind.CARD, Kind.CARD)
    assert looks_like(f"card {card}", rule) is Kind.CARD
    assert looks_like("4111111111111111", rule) is Kind.CARD


@pytest.mark.parametrize(
    "name",
    [
        "cell",
        "megaphone",
        "phone_verified_at",
        "phoneModel",
        "phone_ids",
        "phone_hash",
        "mobile_version",
        "my_iphone",
        "smartphone",
        "smartphone_notes",
        "automobile",
        "whatsapp_verified_at",
        "awa_id",
        "home_hotel",
    ],
)
def test_a_name_that_says_something_else_of_a_phone_says_no_phone(name: str) -> None:
    assert rules(name)[0] is not Rule.PHONE


@pytest.mark.parametrize(
    "made",
    [
        str, lambda us: str(us // 1000), lambda us: str(us * 1000 + us % 997),
        lambda us: str((us - 1_288_834_974_657_000) // 1000 << 22 | us % 2**22),
        lambda us: str((us - 1_420_070_400_000_000) // 1000 << 22 | us % 2**22),
        lambda us: str(us // 1000 << 22 | us % 2**22),
        lambda us: str(76_561_197_960_265_728 + us % 2**31), lambda us: str(621_355_968_000_000_000 + us * 10),
        *(lambda us, end=end: f"{datetime.fromtimestamp(us // 10**6, UTC):%Y%m%d%H%M%S}{us % 10**6:06}"[:end]
          for end in (14, 17, 20)),
    ],
    ids=["us", "ms", "ns", "twitter", "discord", "unix snowflake", "steam", "ticks", "stamp14", "stamp17", "stamp20"],
)  # fmt: skip
def test_of_times_and_ids_of_usual_shapes_less_than_one_in_a_hundred_pass_for_a_card(
    made: Callable[[int], str],
) -> None:
    dice = random.Random(7)
    texts = [made(dice.randrange(1_577_836_800_000_000, 2_082_758_400_000_000)) for _ in range(5_000)]
    assert sum(looks_like(text) is not None for text in texts) < 50


def some(dice: random.Random, least: int, greatest: int, many: int = 20) -> list[int]:
    """Numbers from least to greatest."""
    return [dice.randint(least, greatest) for _ in range(many)]


@pytest.mark.parametrize(
    "made",
    [
        lambda dice: json.dumps(list(map(str, some(dice, 1000, 9999)))),
        lambda dice: json.dumps(some(dice, 1000, 9999), separators=(",", ":")),
        lambda dice: " ".join(map(str, some(dice, 1000, 9999))),
        lambda dice: "-".join(map(str, some(dice, 1000, 9999, 6))),
        lambda dice: ";".join(map(str, some(dice, 10_000_000, 99_999_999))),
        lambda dice: str([round(dice.uniform(-9999, 9999), 4) for _ in range(20)]),
        lambda dice: "GPA.33{:02}-{:04}-{:04}-{:05}".format(*map(dice.randrange, (100, 10_000, 10_000, 100_000))),
        lambda dice: "{:08}-{:04}-4{:03}-8{:03}-{:012}".format(
            *map(dice.randrange, (10**8, 10**4, 1000, 1000, 10**12))
        ).upper(),
    ],
    ids=["quoted", "JSON", "blanks", "dashes", "of eight", "floats", "orders of Google Play", "UUIDs"],
)
def test_of_lists_of_numbers_orders_and_uuids_of_digits_less_than_one_in_a_hundred_pass_for_a_card(
    made: Callable[[random.Random], str],
) -> None:
    dice = random.Random(7)
    assert sum(looks_like(made(dice), Rule.ID) is not None for _ in range(1_000)) < 10


@pytest.mark.parametrize(
    "text",
    [
        "[-7965.8146, -4176.0208, 3484.3716, 4513.6756, -1564.7356, -8244.9278]",
        '["7883","2127","7523","4148","2530","3381","3827","1675"]',
        "42694208-0939-4729-860c-58d0334de73d",
    ],
)
def test_these_are_no_cards(text: str) -> None:
    assert looks_like(text, Rule.ID) is None


def test_groups_of_digits_that_no_card_has_are_an_id() -> None:
    """Of ten such times one makes 16 digits that begin and end as those of a card do."""
    assert [looks_like(f"421-173255760000{last}-77") for last in range(10)] == [None] * 10


def test_below_a_name_that_says_phone_only_numbers_are_phone_numbers() -> None:
    event = {
        "event_type": "x",
        "phones": {"id": "7f3c9a10-1234567", "home": "555 1234567", "seen_ms": 1760000000000, "uses": ["1234567"]},
        "phone_book": {"owner": "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "since": "2026-11-22", "sum": "12ab34567cd89"},
        "iphone": {"id": "1234567"},
    }
    done = redact(event, Declarations({}).rules("x"), "drop", str)
    assert [finding.path for finding in done.findings] == ["/phones/home"]


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 60_000 + "@", "@" * 60_000, "1 " * 30_000, "a@" + "b." * 30_000, ":1" * 30_000),
        # Combining marks in falling order, which NFKC sorts by insertion.
        "\u0315" * 60_000 + "\u0316" * 60_000,
        # Every window begins as a card's, and none is one.
        *("4" * 60_000, "5555555555555555550" * 3_000, "4111   " * 10_000, "4111/" * 12_000, "41111111 " * 7_000),
        # Ends of domains that are no names of files.
        *("a@" + "b.png" * 12_000, ("a@" + "b." * 120) * 300, '"@' * 30_000),
        *(":" * 60_000, "f:" * 30_000, "::1_" * 15_000, "1.1." * 15_000),
        *("+1 " * 20_000, "+" * 60_000, "(12) 1234 " * 6_000, "00 " * 20_000, "0(0" * 20_000, "01.23" * 12_000),
        *("Aa_" * 20_000, "A/" * 30_000, "Abcdefghij_" * 6_000, "Abcdefghij/-" * 5_000),
        *("%2B+" * 15_000, "\u200b" * 60_000),
        *(
            "41 " * 20_000,
            "411 " * 15_000,
            "1." * 30_000,
            "QUFB" * 15_000,
            ("QUFB" * 10 + "\n") * 1_500,
            "a@2x.b" * 10_000,
        ),
        ("a@b" + ".cbc" * 60 + ".js ") * 240,
        *("4111," * 12_000, "41111111-1111-1111-1111-" * 2_500, "1229 4111 1111 1111 1111 " * 2_500),
    ],
    ids=range(40),
)
def test_a_long_text_made_to_be_slow_is_not(text: str) -> None:
    def look(part: str) -> float:
        return cpu_seconds(lambda: looks_like(part))

    # Eight times as long; what takes the square of it would take 64 times as long.
    assert look(text) < 24 * look(text[: len(text) // 8]), "a pattern takes more than linear time"


@pytest.mark.parametrize("pointer", ["email", "", "/", "/event_id", "/*", "/player_id"])
def test_a_pointer_that_cannot_be_used_is_refused_before_anything_starts(pointer: str) -> None:
    with pytest.raises(PiiDeclarationRefused, match="Nothing was"):
        Declarations({"sale": [pointer]})


def test_settings_add_to_what_ships() -> None:
    declared = declarations({"purchase": "/gift/to, /gift/from", "*": "/nick"}, {"purchase": "/version"}, "/player/id")
    event = {"event_type": "purchase", "gift": {"to": "A", "from": "B", "n": 1}, "nick": "C", "version": "1.2.3.4"}
    done = redact(event, declared.rules("purchase"), "drop", str)
    assert done.clean == {"event_type": "purchase", "gift": {"n": 1}, "version": "1.2.3.4"}
    assert "/payment/card_number" in declared.fields["purchase"]
    assert declared.subject_parts == ("player", "id")


@given(st.lists(st.text(min_size=1), min_size=1))
def test_pointers_are_read_as_they_are_written(path: list[str]) -> None:
    assert list(parts(pointer_to(path), "*")) == path
