"""A spec means every permutation, once; what is wrong with one is told without its values; secrets are hidden."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.connect.client.core import DefaultChannelBuilder

from benchmarks.perftest.spec import (
    METHODS,
    Spec,
    SpecRefused,
    digest,
    entity_of,
    parameters,
    parse,
    permutations,
    read_spec,
    redacted,
    secrets,
    settings_of,
)
from engagement_platform.cli.reading import perftest
from engagement_platform.errors import PlatformError
from engagement_platform.settings import Settings
from engagement_platform_tests.docs.pages import ROOT, blocks

TOKEN = "dapi-0123/456+789=;'\"é"
PASSWORD = "hunter2 & sons"
REMOTE = {
    "remote": "sc://cluster.example.org:443/;use_ssl=true",
    "token": TOKEN,
    "conf": {"spark.hadoop.fs.s3a.secret.key": PASSWORD, "spark.sql.adaptive.enabled": "false"},
}


def test_three_runs_of_four_methods_reading_and_writing_are_twenty_four() -> None:
    found = list(permutations(Spec()))
    assert len(found) == len(set(found)) == 24
    assert {(one.operation, one.method) for one in found} == {(o, m) for o in ("read", "write") for m in METHODS}


def test_the_spec_in_the_docs_says_what_is_the_default() -> None:
    [shown] = [block for block in blocks(ROOT / "docs" / "merge_on_read.md", "json") if '"runs"' in block]
    spec = parse(shown)
    assert list(permutations(spec)) == list(permutations(Spec()))
    assert spec.rows == Spec().rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"runs": "hunter2"}', "runs: Input should be a valid integer"),
        ('{"tokens": "hunter2"}', "tokens: Extra inputs are not permitted"),
        ('{"cluster": {"remote": "sc://h/;token=hunter2"}}', "the token stands in cluster.remote"),
        ('{"cluster": {"token": "hunter2"}}', "there is none"),
        ('{"methods": ["hunter2"]}', "methods.0: Input should be 'double_rank_over'"),
        ('{"lake": "hunter2", "generate": {}}', "give lake or generate, not both"),
        ('{"read_queries": ["hunter2", "hunter2"]}', "read_queries names something twice"),
        ('{"runs": 3, "hunter2', "it is not JSON: Unterminated string"),
        ("[]", "the whole: Input should be an object"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_spec_is_told_without_its_values(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "spec.json"
    file.write_text(text)
    with pytest.raises(SpecRefused) as refused:
        read_spec(file)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_token_reaches_the_client_as_it_is(token: str) -> None:
    """The client's own reading of the address decides."""
    for remote in ("sc://127.0.0.1:15002", "sc://127.0.0.1:15002/;use_ssl=true"):
        spec = Spec.model_validate({"cluster": {"remote": remote, "token": token}})
        address = settings_of(spec, Settings(), "/lake").spark.remote_url
        assert address is not None
        assert DefaultChannelBuilder(address).token == token


def test_secrets_are_in_no_parameter_and_decide_nothing() -> None:
    spec = Spec.model_validate({"cluster": REMOTE})
    told = parameters(spec, settings_of(spec, Settings(), "/lake"), {"t": 1})
    assert TOKEN not in repr(spec)
    assert PASSWORD not in repr(spec)
    text = json.dumps(told, ensure_ascii=False)
    assert redacted(text, secrets(spec, Settings())) == text
    assert told["spark"] == {
        **dict.fromkeys(("master", "driver_memory")),
        "remote": "sc://cluster.example.org:443",
        "shuffle_partitions": 2,
        "conf": {"spark.hadoop.fs.s3a.secret.key": "***", "spark.sql.adaptive.enabled": "false"},
    }
    other = Spec.model_validate({"cluster": {**REMOTE, "token": "another"}, "runs": 5})
    assert digest(parameters(other, settings_of(other, Settings(), "/lake"), {"t": 1})) == digest(told)
    newer = parameters(spec, settings_of(spec, Settings(), "/lake"), {"t": 2})
    assert digest(newer) != digest(told)


@pytest.mark.parametrize("name", ["azure.account.key.me.dfs.core.windows.net", "s3a.encryption.key", "s3a.access.key"])
def test_keys_of_every_object_store_are_secrets(name: str) -> None:
    spec = Spec.model_validate({"cluster": {"conf": {f"spark.hadoop.fs.{name}": "hunter2"}}})
    told = json.dumps(parameters(spec, settings_of(spec, Settings(), "/lake"), {}))
    assert ("hunter2" in told, secrets(spec, Settings())) == (False, ["hunter2"])


def test_a_secret_is_hidden_in_each_form_in_which_it_turns_up() -> None:
    spec = Spec.model_validate({"cluster": REMOTE})
    address = settings_of(spec, Settings(), "/lake").spark.remote_url
    said = f"{address} {TOKEN} {json.dumps(TOKEN)} {PASSWORD}"
    assert redacted(said, secrets(spec, Settings())) == (
        'sc://cluster.example.org:443/;use_ssl=true;token=*** *** "***" ***'
    )


def test_without_a_checkout_the_command_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.perftest.run", None)
    with pytest.raises(PlatformError, match="perftest needs the repository's checkout"):
        perftest(tmp_path / "spec.json")


def test_a_method_that_is_not_valid_for_a_lake_is_refused_before_anything_starts() -> None:
    with pytest.raises(PlatformError, match="cannot be read by"):
        entity_of(Spec(lake="/lake"), Settings())
    assert entity_of(Spec(), Settings()).name == "record"
