"""The CloudFormation template is one, by the linter of those who run it, and grants nothing that is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engagement_platform_tests.docs.pages import ROOT

TEMPLATE = ROOT / "docs" / "aws" / "games.yaml"

cfnlint = pytest.importorskip("cfnlint", reason="cfn-lint is not installed; it comes with the test extra (moto)")


def loaded() -> dict[str, Any]:
    """The template, with !Ref and its like in their long form."""
    found: Any = cfnlint.decode.cfn_yaml.load(str(TEMPLATE))
    return dict(found)


def test_the_linter_passes_the_template() -> None:
    from cfnlint.api import ManualArgs, lint

    problems = lint(TEMPLATE.read_text(), config=ManualArgs(regions=["eu-central-1"]))
    assert [f"{problem.linenumber}: {problem.message}" for problem in problems] == []


def statements() -> list[dict[str, Any]]:
    """What the two roles may do."""
    made = loaded()["Resources"]
    policies = [made[name]["Properties"]["PolicyDocument"] for name in ("ReaderPolicy", "WriterPolicy")]
    return [dict(statement) for policy in policies for statement in policy["Statement"]]


def test_no_right_is_for_everything() -> None:
    for statement in statements():
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert not any("*" in action for action in actions)
        assert statement["Resource"] != "*"


def test_the_reader_has_the_rights_that_the_page_of_the_source_names() -> None:
    page = (ROOT / "docs" / "s3_sqs.md").read_text()
    named = {right for right in page.split("`") if right.startswith(("sqs:", "s3:")) and right != "s3:TestEvent"}
    reader = loaded()["Resources"]["ReaderPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    granted = {
        action
        for statement in reader
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    assert {right for right in granted if not right.startswith("kms:")} == named


def test_what_the_outputs_call_settings_are_settings() -> None:
    from engagement_platform.settings import ENV_PREFIX, Settings

    outputs = loaded()["Outputs"].values()
    named = [each["Description"] for each in outputs if str(each["Description"]).startswith(ENV_PREFIX)]
    assert len(named) == 2
    for name in named:
        section, field = name.removeprefix(ENV_PREFIX).lower().split("__")
        annotation: Any = Settings.model_fields[section].annotation
        assert field in annotation.model_fields
    assert Path(TEMPLATE).name in (ROOT / "docs" / "aws.md").read_text()
