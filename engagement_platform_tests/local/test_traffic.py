"""The traffic model's arithmetic, and that sample messages are what they claim to be: good, late, doubled or bad."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.local.invalid_messages import INVALID_ENGAGEMENTS, INVALID_REQUESTS
from engagement_platform.local.traffic import (
    ENGAGEMENTS,
    ENGAGEMENTS_PER_DAY,
    Kind,
    Message,
    Size,
    Traffic,
    organizations,
)
from engagement_platform.pipelines.page_views.tables import SHAPE
from engagement_platform.pipelines.profiles.entity import PROFILE
from engagement_platform.settings import TrafficSettings
from engagement_platform.sources.decoding import (
    change_decoder,
    engagement_decoder,
    mutation_request_decoder,
    record_decoder,
)
from engagement_platform.sources.messages import DecodingLimits, Engagement, MutationRequest, Reason, Rejection

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = DecodingLimits()


def messages(count: int, clock: Callable[[], datetime] | None = None, **shares: float) -> list[Message]:
    settings = TrafficSettings.model_validate(shares)
    return list(islice(Traffic(settings, start=START, clock=clock).messages(), count))


def only_good(count: int, **shares: float) -> list[Message]:
    return messages(count, None, **({"bad_share": 0, "duplicate_share": 0} | shares))


def decoded(message: Message, at: datetime = START + timedelta(hours=1)) -> Engagement | MutationRequest | Rejection:
    decoder = engagement_decoder if message.kind == "engagements" else mutation_request_decoder
    return decoder(LIMITS, at)(message.value)


def test_sizes_grow_by_one_factor_from_2814_to_1968764_engagements_a_day() -> None:
    rates = [ENGAGEMENTS_PER_DAY[size] for size in Size]
    assert rates == [2_814, 14_472, 74_432, 382_804, 1_968_764]
    factor = (rates[-1] / rates[0]) ** (1 / 4)
    assert factor == pytest.approx(5.143, abs=0.0005)
    assert rates == [pytest.approx(rates[0] * factor**n, abs=1) for n in range(5)]


def test_a_small_organization_stores_422_kb_a_day_and_the_largest_295_mb() -> None:
    # Of 150 bytes each.
    smallest, medium, largest = (ENGAGEMENTS_PER_DAY[size] * 150 for size in (Size.S, Size.M, Size.XXL))
    assert (round(smallest / 1e3), round(largest / 1e6)) == (422, 295)
    assert smallest < 500e3 < medium


@given(st.integers(26, 2_000))
def test_nine_of_ten_organizations_are_small(count: int) -> None:
    made = organizations(count, 200)
    assert len({o.id for o in made}) == len(made) == count
    assert sum(o.size is Size.S for o in made) / count == pytest.approx(0.90, abs=0.02)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_organizations_work_too(count: int) -> None:
    assert organizations(count, 1)[0].size is Size.S
    assert len(messages(500, organizations=count, persons_per_organization=1, bad_share=0.1)) == 500


def test_48_organizations_have_every_size() -> None:
    sizes = {Size.S: 43, Size.M: 2, Size.L: 1, Size.XL: 1, Size.XXL: 1}
    assert Counter(o.size for o in organizations(48, 200)) == sizes


def test_organizations_speak_as_often_as_their_size_says() -> None:
    seen = Counter(message.key for message in only_good(20_000, update_share=0, mutation_share=0))
    made = organizations(48, 200)
    total = sum(o.engagements_per_day for o in made)
    for organization in (o for o in made if o.size is not Size.S):
        share = organization.engagements_per_day / total
        assert seen[organization.id.encode()] / 20_000 == pytest.approx(share, abs=4 * (share / 20_000) ** 0.5)


def test_the_same_seed_start_and_clock_make_the_same_bytes() -> None:
    assert messages(3_000) == messages(3_000)
    assert messages(3_000, clock=lambda: START) == messages(3_000, clock=lambda: START)
    assert messages(100, seed=1) != messages(100, seed=2)


def test_a_later_start_never_reuses_an_id() -> None:
    def ids(start: datetime) -> set[str]:
        made = islice(Traffic(TrafficSettings(bad_share=0), start=start).messages(), 2_000)
        return {
            f.get("engagement_id", "") if m.kind == "engagements" else f["request_id"]
            for m in made
            for f in [json.loads(m.value)]
        }

    assert not ids(START) & ids(START + timedelta(microseconds=1))


def test_every_message_that_is_not_meant_to_be_bad_is_decoded() -> None:
    for message in only_good(10_000):
        found = decoded(message)
        assert not isinstance(found, Rejection), (found, message)
        assert found.unknown_fields == 0
        assert found.organization_id.encode() == message.key


def test_bad_messages_of_every_kind_are_refused_for_the_reason_they_are_named_after() -> None:
    # All ways in turn: as many as it takes to meet each of them once.
    codes = {found.code for m in messages(200, bad_share=1) if isinstance(found := decoded(m), Rejection)}
    assert codes == set(map(Reason, INVALID_ENGAGEMENTS.keys() | INVALID_REQUESTS.keys()))


def test_exactly_the_bad_share_is_refused() -> None:
    refused = sum(isinstance(decoded(m), Rejection) for m in messages(20_000, bad_share=0.05, duplicate_share=0))
    assert refused / 20_000 == pytest.approx(0.05, abs=0.01)


def test_a_thousand_inserts_come_with_two_hundred_requests() -> None:
    made = only_good(1_200, update_share=0)
    assert Counter(m.kind for m in made) == {"engagements": 1_000, "mutation-requests": 200}
    operations = Counter(json.loads(m.value)["operation"] for m in made if m.kind == "mutation-requests")
    assert operations["CONVERT"] > operations["RENAME"] > operations["DELETE"] > 0
    assert operations["UPDATE"] > 0


def test_duplicates_are_the_same_bytes_a_while_later() -> None:
    made = messages(20_000, duplicate_share=0.02, bad_share=0)
    first: dict[bytes, int] = {}
    lags = [at - first[m.value] for at, m in enumerate(made) if first.setdefault(m.value, at) != at]
    assert len(lags) / len(made) == pytest.approx(0.02, abs=0.006)
    assert min(lags) >= 10


def test_a_new_version_keeps_the_time_and_the_person_of_the_engagement() -> None:
    seen: dict[str, Engagement] = {}
    updates = 0
    for message in only_good(10_000, mutation_share=0, update_share=0.1):
        found = decoded(message)
        assert isinstance(found, Engagement)
        before = seen.get(found.engagement_id)
        if before is None:
            assert found.version == 1
        else:
            updates += 1
            assert found.version == before.version + 1
            assert (found.engagement_ts, found.person_id) == (before.engagement_ts, before.person_id)
        seen[found.engagement_id] = found
    assert updates == pytest.approx(10_000 * 0.1 / 1.1, rel=0.15)


def test_late_ones_are_days_late_and_others_seconds() -> None:
    made = only_good(5_000, late_share=0.1, update_share=0, mutation_share=0)
    ages = [START + timedelta(seconds=5) - e.engagement_ts for m in made if isinstance(e := decoded(m), Engagement)]
    late = [age for age in ages if age > timedelta(minutes=1)]
    assert len(late) / len(ages) == pytest.approx(0.1, abs=0.02)
    assert timedelta(days=1) < min(late) < max(late) < timedelta(days=9, minutes=1)


def test_requests_come_after_what_they_touch_and_conversions_form_chains() -> None:
    engaged: dict[tuple[str, str], datetime] = {}
    happened: dict[tuple[str, str], datetime] = {}
    edges: dict[tuple[str, str], str] = {}
    touching = 0
    executed: list[datetime] = []
    for message in only_good(20_000):
        found = decoded(message)
        if isinstance(found, Engagement):
            engaged.setdefault((found.organization_id, found.person_id), found.engagement_ts)
            happened.setdefault((found.organization_id, found.engagement_id), found.engagement_ts)
            continue
        assert isinstance(found, MutationRequest)
        executed.append(found.execution_ts)
        if found.engagement_id is not None:
            assert happened[found.organization_id, found.engagement_id] < found.execution_ts
        if found.from_id is not None and (first := engaged.get((found.organization_id, found.from_id))):
            assert first < found.execution_ts
            touching += 1
        if found.operation == "CONVERT" and found.from_id and found.to_id and found.engagement_id is None:
            edges[found.organization_id, found.from_id] = found.to_id
    assert all(earlier <= later for earlier, later in pairwise(executed))
    assert touching > len(executed) / 3
    chains = [key for key, to_id in edges.items() if key[1].startswith("lead-") and (key[0], to_id) in edges]
    assert chains, "no lead became a contact that was merged into another"


def test_messages_per_engagement_is_what_the_stream_holds() -> None:
    shares = {"duplicate_share": 0.1, "bad_share": 0.05, "update_share": 0.1}
    made = messages(20_000, None, **shares)
    found = [engagement for m in made if isinstance(engagement := decoded(m), Engagement)]
    inserts = len({engagement.engagement_id for engagement in found})
    expected = Traffic(TrafficSettings.model_validate(shares), start=START).messages_per_engagement
    assert len(made) / inserts == pytest.approx(expected, rel=0.03)


def changes(count: int) -> list[Message]:
    traffic = Traffic(TrafficSettings(profiles=20), start=START, kinds={"profile-changes", *ENGAGEMENTS})
    return list(islice((message for message in traffic.messages() if message.kind == "profile-changes"), count))


def test_changes_of_profiles_are_decoded_and_come_late_now_and_then() -> None:
    decode = change_decoder(PROFILE.shape, LIMITS, START + timedelta(hours=1))
    made = changes(2_000)
    assert made == changes(2_000)
    newest: dict[str, int] = {}
    ops, late = Counter[str](), 0
    for message in made:
        found = decode(message.value)
        assert not isinstance(found, Rejection)
        unknown_fields, key, version, op, *_values = found
        assert (unknown_fields, key.encode()) == (0, message.key)
        ops[op] += 1
        late += version < newest.get(key, 0)
        newest[key] = max(version, newest.get(key, 0))
    assert ops["UPDATE"] > 1_500
    assert min(ops["INSERT"], ops["DELETE"], late) > 10


def test_messages_of_each_kind_are_the_same_whatever_else_is_sent() -> None:
    kinds: list[Kind] = ["profile-changes", "page-views", *ENGAGEMENTS]

    def made(count: int, *kinds: Kind) -> list[Message]:
        traffic = Traffic(TrafficSettings(), start=START, clock=lambda: START, kinds=kinds)
        return list(islice(traffic.messages(), count))

    every = made(3_000, *kinds)
    for some in ({"profile-changes"}, {"page-views"}, ENGAGEMENTS):
        mine = [message for message in every if message.kind in some]
        assert mine == made(len(mine), *(kind for kind in kinds if kind in some))
    assert Counter(message.kind for message in every)["page-views"] == pytest.approx(3_000 * 0.1 / 1.53, rel=0.05)
    assert made(1) == []


def test_page_views_are_decoded_and_users_come_back() -> None:
    decode = record_decoder(SHAPE, LIMITS, START + timedelta(hours=1))
    traffic = Traffic(TrafficSettings(), start=START, clock=lambda: START, kinds=["page-views"])
    views, users = Counter[object](), Counter[object]()
    for message in islice(traffic.messages(), 2_000):
        found = decode(message.value)
        assert found[0] == 0
        views[found[2]] += 1
        users[found[3]] += 1
    assert max(views.values()) == 1
    assert 5 < sum(users.values()) / len(users) < 20
