"""Which ids an erasure takes, and which it lists because they may be the same subject's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from engagement_platform.cli import app
from engagement_platform.engine.model import Transaction
from engagement_platform.erasing.erase import NEAR_UNKNOWN, GameRefused, Request, erase, near_ids
from engagement_platform.erasing.places import game_places
from engagement_platform.errors import PlatformError
from engagement_platform.lake.arrow import table_of
from engagement_platform.pii.erasure import Subject, subject
from engagement_platform.pii.erasure import erase as destroy
from engagement_platform.pii.vault import VAULT, Vault, open_vault
from engagement_platform.settings import Settings
from engagement_platform_tests import plant
from engagement_platform_tests.defs.conftest import loaded
from engagement_platform_tests.erasing.planted import DATA, engagement
from engagement_platform_tests.files_with import places_with
from engagement_platform_tests.pii.test_vault import deposit, put

BOB = "caf\u00e9-bob"
IN_TABLES = ["Caf\u00e9-Bob", "cafe\u0301-bob", f" {BOB}", f"{BOB}\u00a0"]
UNKNOWN = "cAF\u00e9-bob"
"""Near, and only in the vault: nobody can find it by its keyed hash."""
FAR = [BOB, "cafe-bob", "amy"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a lake whose engagements name ids near to one, and whose vault has some of them; no test erases one."""
    settings = Settings(home=tmp_path_factory.mktemp("ids") / "home")
    plant.create(DATA.uri(settings.lake), DATA)
    rows = [engagement("org", f"e{at}", id_, id_) for at, id_ in enumerate([*IN_TABLES, *FAR])]
    plant.append(DeltaTable(DATA.uri(settings.lake)), table_of(rows, DATA), Transaction("planted", 0))
    vault = open_vault(settings)
    put(vault, 1, [deposit(vault, id_, f"v-{id_}", "kept") for id_ in (BOB, BOB.upper(), UNKNOWN, "cafe-bob")])
    return settings.home


@pytest.fixture
def vault(home: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    """The vault, with commands that are about its lake."""
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(home))
    return open_vault(Settings(home=home))


def call(*words: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(app, words, input=given)


@pytest.mark.parametrize(
    ("folding", "listed"),
    [
        (None, {*((id_, DATA.name) for id_ in IN_TABLES), (BOB.upper(), VAULT.name)}),
        ('["case"]', {(IN_TABLES[0], DATA.name), (BOB.upper(), VAULT.name)}),
        ('["nfc"]', {(IN_TABLES[1], DATA.name)}),
        ('["trim"]', {(id_, DATA.name) for id_ in IN_TABLES[2:]}),
        ("[]", set()),
    ],
)
def test_ids_that_differ_by_case_form_or_blank_ends_are_listed_before_anything_is_erased(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, folding: str | None, listed: set[tuple[str, str]]
) -> None:
    if folding is not None:
        monkeypatch.setenv("ENGAGEMENT_PLATFORM_PII__FOLDING", folding)
    done = call("erase", "--subject", BOB, given="n\n")
    lines = {line for line in done.stderr.splitlines() if line.startswith("Not erased")}
    assert {line.partition(";")[0] for line in lines} == {
        f"Not erased, but near: {id_!a} in {where}" for id_, where in listed
    }
    assert (NEAR_UNKNOWN in done.stderr) is (folding != "[]")
    assert done.exit_code == 1, "it was not confirmed"
    assert vault.read(BOB, purpose="support", reader="test")


def test_who_confirms_beforehand_is_shown_the_near_ids_too_and_a_run_of_dagster_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home")
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(settings.home))
    vault = open_vault(settings)
    put(vault, 1, [deposit(vault, id_, f"v-{id_}", "kept") for id_ in (BOB, BOB.upper())])
    request, kept = tmp_path / "request.json", tmp_path / "dagster"
    kept.mkdir()
    done = call("erase", "--subject", BOB, "--yes")
    assert f"Not erased, but near: {BOB.upper()!a} in {VAULT.name};" in done.stderr
    request.write_text(json.dumps({"subject": BOB}))
    config = {"ops": {"erase": {"config": {"request": str(request), "receipt": str(tmp_path / "receipt.json")}}}}
    with dg.instance_for_test(temp_dir=str(kept)) as instance:
        result = loaded().resolve_job_def("erase_subjects").execute_in_process(run_config=config, instance=instance)
    [shown] = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    assert shown["near ids"].value == 1
    assert places_with([kept], [BOB.upper().encode()]) == []
    assert vault.read(BOB.upper(), purpose="support", reader="test")
    assert not vault.read(BOB, purpose="support", reader="test")


def test_ids_are_read_from_lines_of_standard_input_in_one_order_whatever_that_of_the_arguments_is(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Request]()

    def noted(_: Settings, request: Request) -> list[tuple[str, str]]:
        asked.append(request)
        return []

    monkeypatch.setattr("engagement_platform.erasing.erase.near_ids", noted)
    words = ("--profile", "-", "--person", "-", "--person", "p-2", "--person", "-", "--subject", "-")
    done = call("erase", *words, given="s-1\np-1\np-3\nq-1\nn\n")
    assert asked == [Request("s-1", None, ["p-1", "p-2", "p-3"], (), ["q-1"])]
    assert (done.exit_code, "p-1" in done.output) == (1, False), "the last line was the answer"
    call("erase", "--subject", "-", "--person", "-", given="\ufeffs-1\r\np-1\r\nn\r\n")
    assert asked[1:] == [Request("s-1", None, ["p-1"], (), [])], "a mark of the byte order is no part of an id"
    for more in (("--person", "-"), ("--profile", "-")):
        done = call("erase", "--yes", "--subject", "-", *more, given="s-1\n")
        assert "(empty_id)" in str(done.exception)
    assert vault.read(BOB, purpose="support", reader="test")


def test_an_empty_game_is_refused_before_anything_is_done(vault: Vault, tmp_path: Path) -> None:
    """`--game "$GAME"` of a variable that is not set, and the same in a request to Dagster."""
    request = tmp_path / "request.json"
    for game in ("", " ", "g\n", "g/h", "g" * 65):
        for words in (("erase", "--yes"), ("erase", "--verify", str(request))):
            done = call(*words, "--subject", BOB, "--game", game)
            assert isinstance(done.exception, GameRefused), words
            assert "Nothing was erased" in str(done.exception)
        request.write_text(json.dumps({"subject": BOB, "game": game}))
        with pytest.raises(GameRefused):
            erase(Settings(home=vault.root.removesuffix("/lake")), Request.read(request))
    with pytest.raises(ValueError, match="never empty"):
        destroy(vault, Subject(BOB, vault.ref(BOB), ""))
    assert vault.read(BOB, purpose="support", reader="test")


def test_ids_of_a_table_that_has_numbers_are_compared_as_texts(tmp_path: Path) -> None:
    settings, name = Settings(home=tmp_path / "home"), "game/scores"
    numbers = pa.table({"player_id": pa.array([42, 43, None], pa.int64()), "game_id": ["chess", "chess", "go"]})
    write_deltalake(f"{settings.lake}/{name}", numbers)
    assert near_ids(settings, Request("\uff14\uff12")) == []
    [place] = game_places(settings)
    vault = open_vault(settings)
    assert list(place.near(lambda id_: id_ in {"42", "44"}, None)) == [("42", name)]
    left = {id_: place.left(subject(vault, id_, None)) for id_ in ("42", "042", "p-42", "44")}
    assert (left, place.stays) == ({"42": 1, "042": 0, "p-42": 0, "44": 0}, [])


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (b"", "empty_id"),
        (b" bob", "blank_end"),
        ("bob\u2003".encode(), "blank_end"),
        (b"bo\x07b", "control_character"),
        (b"b" * 257, "id_too_long"),
        (b"bob\xff", "unpaired_surrogate"),
    ],
)
def test_an_id_that_decoding_refuses_is_refused_by_the_name_of_the_rule(
    vault: Vault, tmp_path: Path, given: bytes, rule: str
) -> None:
    receipt = tmp_path / "receipt.json"
    assert call("erase", "--subject", "amy", "--game", "g", "--yes", "--out", str(receipt)).exit_code == 0
    text = given.decode("utf-8", "surrogateescape")
    calls: list[Sequence[str]] = [
        ("erase", "--yes", "--subject", "-"),
        ("erase", "--verify", str(receipt), "--subject", "-"),
        ("pii", "read", "--purpose", "support", "--subject", "-"),
        *(("erase", "--yes", "--subject", "bob", name, text) for name in ("--person", "--organization", "--profile")),
    ]
    for words in calls:
        done = call(*words, given=given + b"\n")
        assert isinstance(done.exception, PlatformError), words
        assert f"({rule})" in str(done.exception)
        assert not given or text not in str(done.exception)
    assert vault.read(BOB, purpose="support", reader="test")
