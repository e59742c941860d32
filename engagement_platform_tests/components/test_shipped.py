"""The platform's own profiles and game events are what a declaration of the same would be."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from engagement_platform.components.merge_on_read_entity import MergeOnReadEntity
from engagement_platform.components.s3_sqs_tables import S3SqsTables
from engagement_platform.components.shipped import GameEvents, profiles
from engagement_platform.defs.platform import bound_platform
from engagement_platform.pipelines.profiles.entity import PROFILE


def test_profiles_are_the_entity_that_their_declaration_says() -> None:
    assert profiles().entity == PROFILE
    said = profiles().model_dump() | {"name": "person"}
    assert MergeOnReadEntity(**said).entity == replace(PROFILE, name="person")


def test_a_declaration_of_the_same_brings_the_same_parts_and_its_own_examination() -> None:
    declared = MergeOnReadEntity(**(profiles().model_dump() | {"name": "person"})).build_defs()
    ours = profiles().build_defs()

    def parts(definitions: dg.Definitions, name: str) -> set[str]:
        bound = dg.Definitions.merge(definitions, dg.Definitions(resources={"platform": bound_platform()}))
        repository = bound.get_repository_def()
        named = [*repository.job_names, *(sensor.name for sensor in repository.sensor_defs)]
        return {part.replace(name, "it") for part in named if not part.startswith("__")}

    examination = {"check_it_tables", "it_tables_after_writes"}
    assert parts(declared, "person") == parts(ours, "profile") | examination


def test_nobody_else_declares_what_the_platform_calls_its_own() -> None:
    with pytest.raises(ValueError, match="among the platform's own"):
        MergeOnReadEntity(**profiles().model_dump())
    with pytest.raises(ValueError, match="among the platform's own"):
        S3SqsTables(**GameEvents().model_dump())
