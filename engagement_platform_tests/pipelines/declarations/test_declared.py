"""What stands in a `defs.yaml` file becomes a stream, or is refused with the file and the reason."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from engagement_platform.consumers.reading import table_names
from engagement_platform.errors import PlatformError
from engagement_platform.pipelines.declarations.declared import PLATFORM_JOBS, DeclarationRefused, declarations
from engagement_platform.pipelines.jobs import GAME_JOBS, JOB_NAMES, JobRefused, job_names, topic_of
from engagement_platform.settings import Settings

CLICKS = dedent(
    """\
    type: engagement_platform.KafkaTable
    attributes:
      topic: shop-clicks
      table: shop/click
      columns:
        click_id: string
        shop_id: string
        price: {type: double, description: What it cost., required: true}
        clicked_at: timestamp
      key: shop_id
      event_time: clicked_at
      unique: [click_id]
    """
)
ACCOUNTS = dedent(
    """\
    type: engagement_platform.MergeOnReadEntity
    attributes:
      topic: account-changes
      name: account
      key: account_id
      columns: {plan: {type: string, description: What is paid for.}, seats: long}
    """
)
BY_SHOP = "partitioned_by: [shop_id, event_date]"


def declared(folder: Path, *texts: str) -> Settings:
    for number, text in enumerate(texts):
        place = folder / "defs" / f"part-{number}"
        place.mkdir(parents=True)
        (place / "defs.yaml").write_text(text)
    (folder / "defs").mkdir(exist_ok=True)
    return Settings(home=folder, defs_folder=folder / "defs")


def test_a_file_declares_a_stream(tmp_path: Path) -> None:
    [stream] = declarations(declared(tmp_path, CLICKS)).streams
    assert (stream.name, stream.job, stream.topic) == ("shop/click", "ingest-shop-click", "shop-clicks")
    assert stream.table.partitioned_by == ("event_date",)
    assert stream.table.column_names[:5] == ("event_date", "click_id", "shop_id", "price", "clicked_at")
    assert stream.quarantine.name == "shop/click_quarantine"
    assert stream.shape.required == {"click_id", "shop_id", "price", "clicked_at"}
    assert {column.name: column.comment for column in stream.table.columns}["price"] == "What it cost."


def test_one_file_may_declare_several_and_other_components_are_passed_by(tmp_path: Path) -> None:
    other = "type: dagster.DefsFolderComponent\n"
    orders = "type: engagement_platform.MaintainedTable\nattributes: {table: shop/order}\n"
    settings = declared(tmp_path, f"{CLICKS}---\n{ACCOUNTS}---\n{other}", other, f"{orders}---\n{ARCADE}")
    found = declarations(settings)
    assert found.tables == (
        "shop/click", "shop/click_quarantine", "account/changeset", "account/materialized", "arcade/quarantine",
        "arcade/coin_in", "shop/order",
    )  # fmt: skip
    assert [stream.name for stream in found.streams] == ["shop/click"]
    assert [declared.entity.view for declared in found.entities] == ["account/current"]
    assert found.topics == ("shop-clicks", "account-changes")
    assert job_names(settings) == (
        *JOB_NAMES, "ingest-shop-click", "ingest-arcade-events", "ingest-account-changes", "rematerialize-account",
    )  # fmt: skip
    assert topic_of("ingest-account-changes", settings) == "account-changes"
    assert {"shop/click", "shop/click_quarantine", "account/current", "account/changeset"} < set(table_names(settings))


def test_without_a_folder_nothing_is_declared(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert job_names(settings) == JOB_NAMES
    with pytest.raises(JobRefused, match="ingest-engagements"):
        topic_of("ingest-shop-click", settings)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("shop_id: string", "shop_id: text", "columns.shop_id"),
        ("key: shop_id", "key: shop", "no columns shop, named by key"),
        ("key: shop_id", "key: price", "which is no string"),
        ("event_time: clicked_at", "event_time: price", "no timestamp column"),
        ("shop/click", "click", "not called like shop/click"),
        ("shop/click", "engagement/click", "among the platform's own"),
        ("shop/click", "shop/../click", "not called like shop/click"),
        ("click_id: string", "offset: string", "cannot have columns called offset"),
        ("click_id: string", "verdict: string", "cannot have columns called verdict"),
        ("unique: [click_id]", "partitioned_by: [price]", "cannot be partitioned by price"),
        ("unique: [click_id]", "partitioned_by: [colour]", "no columns colour"),
        ("unique: [click_id]", f"{BY_SHOP}\n  subject: shop_id", "by shop_id, which has the ids of persons: names of"),
        ("key: account_id", "key: account_id\n  partitioned_by: [account_id]", "layout/history would keep them after"),
        ("unique: [click_id]", "uniq: [click_id]", "uniq: Extra inputs are not permitted"),
        ("shop_id: string", "shop_id: decimal(39,1)", "is no type of a column"),
        ("unique: [click_id]", "unique: [tags]\n  description: ''", "no columns tags, named by unique"),
        ("click_id: string", "click_id: array<string>", "nested, and unique needs plain values"),
        ("topic: shop-clicks", "topic: '{{ env.TOPIC }}'", "templates"),
        ("topic: shop-clicks", "topic: [", "while parsing"),
        ("seats: long", "lead-score: long", "not called like lead_score: lead-score"),
        ("seats: long", "first name: string", "not called like lead_score: first name"),
        ("seats: long", "city: string, City: string", "not called like lead_score: City"),
        ("key: account_id", "key: account.id", "not called like lead_score: account.id"),
        ("What is paid for.", "It., required: true", "required: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file_and_the_reason(
    tmp_path: Path, before: str, after: str, says: str
) -> None:
    text = CLICKS if before in CLICKS else ACCOUNTS
    assert before in text
    with pytest.raises(DeclarationRefused, match=r"defs\.yaml") as refused:
        declarations(declared(tmp_path, text.replace(before, after)))
    assert says in str(refused.value)
    assert "Nothing was started" in str(refused.value)


@pytest.mark.parametrize("table", ["shop/../engagement/data", "./engagement/data", "shop/.", "shop//order", "order"])
def test_a_maintained_table_is_a_folder_below_the_lake_spelled_in_one_way(tmp_path: Path, table: str) -> None:
    with pytest.raises(DeclarationRefused, match="not called like shop/order"):
        declarations(declared(tmp_path, WATCHED.replace("shop/click", table)))


@pytest.mark.parametrize("subject", ["", "\n  subject: click_id"])
def test_a_table_is_partitioned_by_any_other_column_than_its_subject(tmp_path: Path, subject: str) -> None:
    settings = declared(tmp_path, CLICKS.replace("unique: [click_id]", BY_SHOP + subject))
    [stream] = declarations(settings).streams
    assert stream.table.partitioned_by == ("shop_id", "event_date")


CLICKS_OF_ANOTHER = CLICKS.replace("shop-clicks", "other")
ARCADE = dedent(
    """\
    type: engagement_platform.S3SqsTables
    attributes:
      name: arcade
      queue_url: https://sqs/arcade
      bucket: arcade
      types: {coin_in: {description: A coin was put in., fields: {cents: long}}}
    """
)
WATCHED = "type: engagement_platform.MaintainedTable\nattributes: {table: shop/click}\n"
CHAIN = "type: engagement_platform.ViewAnalytics\n"


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (CLICKS, CLICKS_OF_ANOTHER, "own the table shop/click"),
        (CLICKS, CLICKS_OF_ANOTHER.replace("shop/click", "shop/click_quarantine"), "own the table shop/click_quar"),
        (CLICKS, CLICKS_OF_ANOTHER.replace("shop/click", "shop/click/north"), "own files of one folder"),
        (CLICKS.replace("shop/click", "shop/x/click"), CLICKS_OF_ANOTHER.replace("shop/click", "shop/x"), "own files"),
        (CLICKS.replace("shop/click", "shop_a/click"), CLICKS_OF_ANOTHER.replace("shop/click", "shop/a_click"),
         "run the job ingest_shop_a_click, under one checkpoint"),
        (ACCOUNTS, ACCOUNTS.replace("account-changes", "other"), "own the table account/changeset"),
        (ACCOUNTS, CLICKS.replace("shop/click", "account/current"), "own the table account/current"),
        (ACCOUNTS, CLICKS.replace("shop/click", "account/changes"), "run the job ingest_account_changes"),
        (WATCHED, CLICKS, "own the table shop/click"),
        (ARCADE, ARCADE.replace("sqs/arcade", "sqs/other"), "own the table arcade/quarantine"),
        (ARCADE, ARCADE.replace("name: arcade", "name: hall"), "read the queue https://sqs/arcade"),
        (ARCADE, CLICKS.replace("shop/click", "arcade/coin_in"), "own the table arcade/coin_in"),
        (ARCADE, CLICKS.replace("shop/click", "arcade/events"), "run the job ingest_arcade_events"),
        (CHAIN, CHAIN, "own the table view/page_view"),
    ],
)  # fmt: skip
def test_two_declarations_that_would_own_the_same_are_refused_with_both_files(
    tmp_path: Path, one: str, other: str, both: str
) -> None:
    with pytest.raises(PlatformError, match="Give one of them another name") as refused:
        declarations(declared(tmp_path, one, other))
    said = str(refused.value)
    assert f"would both {both}" in said
    assert "part-0/defs.yaml" in said
    assert "part-1/defs.yaml" in said
    assert "Nothing was started" in said


@pytest.mark.parametrize(
    ("text", "both"),
    [
        (CLICKS.replace("shop/click", "mutation/requests"), "run the job ingest_mutation_requests"),
        (ACCOUNTS.replace("name: account", "name: aliases"), "run the job rematerialize_aliases"),
        (ARCADE.replace("https://sqs/arcade", "https://sqs/ours"), "read the queue https://sqs/ours"),
    ],
)
def test_what_the_platform_has_itself_cannot_be_declared(tmp_path: Path, text: str, both: str) -> None:
    settings = declared(tmp_path, text)
    ours = settings.games.model_copy(update={"queue_url": "https://sqs/ours"})
    with pytest.raises(PlatformError, match=f"^The platform.* would both {both}"):
        declarations(settings.model_copy(update={"games": ours}))


def test_declarations_that_have_nothing_in_common_stand_beside_each_other(tmp_path: Path) -> None:
    beside = CLICKS.replace("shop/click", "shop/click_rate")
    found = declarations(declared(tmp_path, CLICKS, beside, ACCOUNTS, ARCADE, CHAIN))
    assert (len(found.streams), len(found.entities), len(found.feeds), found.page_views) == (2, 1, 1, True)


def test_every_name_of_the_platform_that_a_declaration_could_come_to_is_kept_for_it() -> None:
    assert {*JOB_NAMES, *GAME_JOBS} - PLATFORM_JOBS == {"apply-mutations"}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationRefused, match="no such folder"):
        declarations(Settings(home=tmp_path, defs_folder=tmp_path / "nowhere"))
