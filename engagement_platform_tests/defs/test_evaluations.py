"""Check results that no run has come by are recorded once, and read back with the time at which they were."""

from __future__ import annotations

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from engagement_platform.defs.evaluations import as_code, check_result, newest_results, report, report_news

TABLE = dg.AssetKey("table")
GOOD, BAD, NEVER = (dg.AssetCheckKey(TABLE, name) for name in ("good", "bad", "never"))
RESULTS = [
    dg.AssetCheckResult(passed=True, asset_key=TABLE, check_name="good"),
    dg.AssetCheckResult(passed=False, asset_key=TABLE, check_name="bad", metadata={"wrong": 3}, description="3 wrong"),
]


@dg.asset(key=TABLE)
def written() -> None: ...


def test_a_reported_result_belongs_to_no_run_and_a_check_without_a_result_has_none(
    instance: dg.DagsterInstance,
) -> None:
    dg.materialize([written], instance=instance)
    report(instance, RESULTS)
    found = newest_results(instance, [GOOD, BAD, NEVER])
    assert set(found) == {GOOD, BAD}
    bad = found[BAD]
    assert (bad.run_id, bad.evaluation.passed, bad.evaluation.description) == ("", False, "3 wrong")
    assert bad.evaluation.metadata["wrong"].value == 3


def test_a_sensor_reports_its_results_again_after_a_materialization_and_not_before(
    instance: dg.DagsterInstance,
) -> None:
    context = dg.build_sensor_context(instance=instance)
    assert [report_news(context, RESULTS) for _ in range(2)] == [2, 0]
    before = newest_results(instance, [BAD])[BAD].timestamp
    dg.materialize([written], instance=instance)
    assert [report_news(context, RESULTS) for _ in range(2)] == [2, 0]
    assert newest_results(instance, [BAD])[BAD].timestamp > before


MARKUP = [
    "org [here](http://evil.example) is late", "![x](//evil.example/pixel.png)", "<img src=x onerror=alert(1)>",
    "see https://evil.example", "WWW.evil.example has 3", "mail a@evil.example", "a *b* c", "a _b_ c", "a ~~b~~ c",
    "# a", "- a", "1. a", "a\n\n# b", "    a", "| a |\n|---|\n| b |", "a `b", "``` a", "` a ` b", "&#91;a](b)", "> a",
    "a\\", "a\n===", "\n[a]: http://evil.example\n\n[a]",
]  # fmt: skip


@given(st.one_of(st.sampled_from(MARKUP), st.text("ab1 _`*[]()<>!#-+|~\\\n.@:/wW", max_size=12), st.text()))
@example("The table `engagement/data` has 3 of 4 rows (75 %); the limit is 1. Set `quality.freshness` higher.")
def test_what_a_check_says_is_text_and_code_in_markdown(sentence: str) -> None:
    """GFM makes links of what has `://`, `www.` or `@`, after all else."""
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(as_code(sentence))
    assert {token.type for token in parsed} <= {"paragraph_open", "inline", "paragraph_close"}
    parts = [part for token in parsed for part in token.children or ()]
    assert {part.type for part in parts} <= {"text", "code_inline"}
    plain = "".join(part.content for part in parts if part.type == "text")
    assert not any(begins in plain.lower() for begins in ("://", "www.", "@"))
    assert " ".join(sentence.split()) in " ".join(as_code(sentence).split())


@pytest.mark.parametrize("name", ["[x](http://evil.example)", "<b>x</b>"])
def test_a_name_in_a_check_s_description_is_code(name: str) -> None:
    assert check_result(TABLE, "bad", f"{name} is late").description == f"` {name} is late `"
    assert check_result(TABLE, "bad", "It is late.").description == "It is late."
    assert check_result(TABLE, "bad", "").description is None
