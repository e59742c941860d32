"""What keeps personal data apart holds to, whatever comes: no value is lost, and nothing that nobody made is opened,
verified or taken for a request. `fuzz` runs the properties for as long as one likes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from engagement_platform.erasing.erase import Request
from engagement_platform.errors import PlatformError
from engagement_platform.ingest_server.events import EventRefused, sent_as_json, sent_as_lines
from engagement_platform.ingest_server.intake import Intake, SpoolSeal
from engagement_platform.ingest_server.spool import RecordKind
from engagement_platform.pii import receipts
from engagement_platform.pii.declared import declarations
from engagement_platform.pii.redaction import redact
from engagement_platform.pii.sealing import SealBroken, Sealer
from engagement_platform.pii.vault import Vault, open_vault
from engagement_platform.settings import Settings
from engagement_platform_tests.conformance.fuzz_property import EVENTS, NOW, Property
from engagement_platform_tests.conformance.hostile import encoded, json_texts, nearly, object_text


def _leaves(value: object) -> int:
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if within is None else sum(map(_leaves, within))


def _redaction(text: str) -> None:
    try:
        event = json.loads(text)
        json.dumps(event, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return
    if not isinstance(event, dict) or text.count("[") > 90:
        return
    rules = _declared().rules(str(event.get("event_type")))
    apart = redact(event, rules, "reject", str)
    assert _leaves(apart.clean) + sum(_leaves(one.value) for one in apart.values) == _leaves(event), "a value is gone"
    for policy in ("drop", "hash"):
        clean = redact(event, rules, policy, lambda value: f"#{len(value)}").clean
        again = redact(clean, rules, "drop", str)
        assert again.values == ()
        assert [found for found in again.findings if not found.kept] == [], "what looks like personal data is left"


@cache
def _declared() -> Any:
    return declarations({}, {}, "/player_id")


@cache
def _vault() -> Vault:
    # For as long as the process lives.
    return open_vault(Settings(home=Path(tempfile.mkdtemp(prefix="fuzz-")) / "home"))


def _intake(example: tuple[bytes, bool]) -> None:
    body, lines = example
    keyring = _vault().keyring
    try:
        sent = sent_as_lines(body) if lines else sent_as_json(body)
    except EventRefused:
        return
    taken = Intake(Settings(), keyring, "s").take("puzzle", sent, NOW)
    assert len(taken.records) == len(sent) == taken.accepted + len(taken.refused)
    json.dumps([vars(one) for one in taken.refused], ensure_ascii=False).encode()
    seal = SpoolSeal(keyring.secret("spool"), "s")
    refused = {one.index for one in taken.refused}
    for index, (record, one) in enumerate(zip(taken.records, sent, strict=True)):
        if index in refused:
            assert record.kind is RecordKind.REFUSED
            assert seal.open(record), "a refused event is kept whole"
        else:
            assert isinstance(one.value, dict)
            assert json.loads(record.open)["event_id"] == one.value["event_id"]


def _sealed(example: tuple[bytes, bytes]) -> None:
    sealed, about = example
    try:
        Sealer(b"k" * 32).open(sealed, about, "It")
    except SealBroken:
        return
    raise AssertionError("bytes that nobody sealed were opened")


def _receipt(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            receipts.verify(_vault(), receipts.read(Path(file.name)), [], None)
        except receipts.ReceiptRefused:
            return
    assert json.loads(content) == _a_receipt(), "what nobody signed was verified"


@cache
def _a_receipt() -> dict[str, Any]:
    from engagement_platform.pii.erasure import subject

    return receipts.receipt(_vault().keyring, subject(_vault(), "p-1", None), 0, [], NOW)


_REQUEST = {"subject": "p", "game": None, "persons": ["a"], "profiles": [], "now": False}
_PLAIN = object_text((json.dumps(name), json.dumps(value)) for name, value in _REQUEST.items()).encode()


def _request(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            request = Request.read(Path(file.name))
        except PlatformError:
            assert content != _PLAIN, "a request that is as it has to be is refused"
            return
    assert isinstance(request.subject, str)
    assert json.loads(content)["subject"] == request.subject


_BODIES = st.one_of(
    st.lists(nearly(EVENTS), max_size=4).map(lambda each: f"[{','.join(each)}]"),
    st.lists(nearly(EVENTS), max_size=4).map("\n".join),
    st.lists(nearly(EVENTS), max_size=3).map(lambda each: object_text([('"events"', f"[{one}]") for one in each])),
    json_texts(),
)

PERSONAL: Mapping[str, Property] = {
    "personal data: redaction": Property(nearly(EVENTS), _redaction),
    "personal data: the spool's records": Property(st.tuples(encoded(_BODIES), st.booleans()), _intake),
    "personal data: sealed values": Property(st.tuples(st.binary(max_size=60), st.binary(max_size=8)), _sealed),
    "personal data: receipts": Property(
        st.one_of(
            st.deferred(
                lambda: encoded(nearly([{**_a_receipt(), "signature": "x"}, {**_a_receipt(), "game": "other"}]))
            ),
            encoded(json_texts()),
            st.binary(max_size=20),
        ),
        _receipt,
    ),
    "personal data: requests to erase": Property(
        st.one_of(
            st.just(_PLAIN),
            encoded(nearly([_REQUEST])),
            encoded(json_texts()),
        ),
        _request,
    ),
}
