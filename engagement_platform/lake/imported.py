"""Tables in which an import keeps its plan, what came of it, and what it refused; and the statements that end one.

What is imported is `importing`'s to say.
"""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table
from engagement_platform.lake.lake import Lake

_WHERE = (
    Column("source", "string", "Where the old store is."),
    Column("table_name", "string", "The table that it is imported into."),
    Column("slice", "long", "Part of the import that is committed at once; counted from 0."),
)

PLAN = Table(
    key=("import", "plan"),
    description="Which file of an old store belongs to which slice, written before any work.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("path", "string", "Relative to the source."),
        Column("bytes", "long", "Size as it was planned."),
        Column("modified_ns", "long", "When the file was last changed, nanoseconds since 1970."),
        Column("format", "string", "parquet, orc, csv, jsonl or text."),
        Column("codec", "string", "How the whole file is compressed; null: it is not, or inside the format."),
    ),
)

OUTCOME = Table(
    key=("import", "outcome"),
    description="What came of each slice, once its rows and its quarantine were committed.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("rows", "long", "Imported."),
        Column("rejected", "long", "In import/quarantine."),
        Column("checksum", "string", "Hashes of the imported rows added up."),
        Column("algorithm", "string", "What hashed; sums of others cannot be compared."),
        Column("files", "long", "Read."),
        Column("bytes", "long", "Of these files."),
        Column("seconds", "double", "Reading and parsing them took."),
    ),
)

REJECTED = Table(
    key=("import", "quarantine"),
    description="Every line or row of an old store that did not fit, whole, and every file that cannot be read.",
    mode=Mode.APPEND_ONLY,
    columns=(
        *_WHERE,
        Column("path", "string", "File, relative to the source."),
        Column("value", "binary", "The line as it stands; a row of Parquet or ORC as JSON; null: the file as such."),
        Column("reason", "string", "Why it was refused."),
    ),
)


def merge_files(lake: Lake, table: Table) -> None:
    """Merge small files of a table."""
    lake.spark.sql(f"OPTIMIZE {lake.sql_name(table)}").collect()


def convert_folder(lake: Lake, folder: str, partitioned_by: str) -> None:
    """Make a folder of Parquet files a Delta table. partitioned_by: columns and types as DDL; empty: by none."""
    place, by = folder.replace("`", "``"), f" PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
    lake.spark.sql(f"CONVERT TO DELTA parquet.`{place}`{by}").collect()
