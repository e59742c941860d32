"""The table in which OPTIMIZE writes down what it did, beside what was predicted. Writing it is `optimize`."""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table

LAYOUT_HISTORY = Table(
    key=("layout", "history"),
    description="One row for every slice of a table that was optimized: what was predicted, and what came of it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        Column("table_name", "string", "The table, such as engagement/data."),
        Column("partition", "string", "Its partition, such as organization_id=org-7; empty: the whole table."),
        Column("action", "string", "optimize (merge small files) or zorder."),
        Column("why", "string", "Why this slice was chosen, and this action."),
        Column("target_file_bytes", "long", "Size that files were merged up to."),
        Column("predicted_gain", "double", "Files that a change and a read of a week would no longer open."),
        Column("actual_gain", "double", "The same by the files that the partition has afterwards."),
        Column("files_before", "long", "Files of the partition before."),
        Column("files_after", "long", "Files of the partition afterwards."),
        Column("bytes_rewritten", "long", "Bytes of the files that were replaced."),
        Column("bytes_written", "long", "Bytes of the files that replaced them."),
        Column("seconds", "double", "How long it took, with all attempts."),
        Column("version", "long", "Version of the table that it made; null: nothing was left to do."),
        Column("fingerprint", "string", "Of the files it left, by which a later run sees that nothing changed since."),
        Column("started_ts", "timestamp", "When it began, UTC."),
        Column("ingestion_date", "date", "UTC day of started_ts."),
    ),
)
