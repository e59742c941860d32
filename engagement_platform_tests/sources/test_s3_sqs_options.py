"""Which options the source takes, and what it says to others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engagement_platform.sources.s3_sqs_errors import S3SqsOptionRefused
from engagement_platform.sources.s3_sqs_options import OPTION_NAMES, parse_options
from engagement_platform_tests.docs.pages import ROOT, text

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/raw"


def test_names_have_no_case_and_the_region_is_in_the_queue() -> None:
    options = parse_options(
        {"QUEUEURL": QUEUE, "fileformat": "CSV", "maxFilesPerTrigger": "7", "allowOverwrites": "true"}
    )
    assert (options.queue_url, options.file_format, options.region) == (QUEUE, "csv", "eu-west-1")
    assert (options.max_files_per_trigger, options.allow_overwrites) == (7, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "queueUrl is missing"),
        ({"queueUrl": QUEUE, "fileFromat": "json"}, "there is no option fileFromat (did you mean fileFormat?)"),
        # As Spark hands it over.
        ({"queueuri": QUEUE}, "there is no option queueuri (did you mean queueUrl?)"),
        ({"queueUrl": QUEUE, "path": "s3://raw"}, "a queue has no path"),
        ({"queueUrl": "raw"}, "a URL"),
        ({"queueUrl": QUEUE, "fileFormat": "avro"}, "one of json, csv, parquet, text"),
        ({"queueUrl": QUEUE, "maxFilesPerTrigger": "0"}, "a whole number from 1"),
        ({"queueUrl": QUEUE, "visibilityTimeout": "5m"}, "a whole number from 3 to 43200"),
        ({"queueUrl": QUEUE, "allowOverwrites": "yes"}, "one of true, false"),
        ({"queueUrl": QUEUE, "stateLocation": "s3://raw/state"}, "a folder on a disk of the driver"),
        ({"queueUrl": QUEUE, "buckets": " , "}, "names of buckets"),
    ],
)
def test_a_wrong_option_is_refused_with_the_list_of_right_ones(given: dict[str, str], said: str) -> None:
    with pytest.raises(S3SqsOptionRefused, match=re.escape(said)) as refused:
        parse_options(given)
    assert ", ".join(OPTION_NAMES) in str(refused.value)


def test_the_state_is_a_file_in_a_folder_or_a_database(tmp_path: Path) -> None:
    folder = parse_options({"queueUrl": QUEUE, "stateLocation": str(tmp_path)})
    assert folder.state_location == f"sqlite:///{tmp_path}/s3_sqs.db"
    database = parse_options({"queueUrl": QUEUE, "stateLocation": "postgresql+psycopg2://host/db"})
    assert database.state_location == "postgresql+psycopg2://host/db"


def test_the_page_has_every_option_and_no_other() -> None:
    page = text(ROOT / "docs" / "s3_sqs.md")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(OPTION_NAMES)
