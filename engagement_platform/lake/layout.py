"""The table in which maintenance writes down what it did, beside what was predicted. Writing it is `optimize`."""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table

LAYOUT_HISTORY = Table(
    key=("layout", "history"),
    description="One row for every slice of a table that was optimized, and for every VACUUM and migration "
    "that did something: what was predicted, and what came of it.",
    mode=Mode.APPEND_ONLY,
    partitioned_by=("ingestion_date",),
    columns=(
        Column("table_name", "string", "The table, such as engagement/data."),
        Column("partition", "string", "Its partition, such as organization_id=org-7; empty: the whole table."),
        Column("action", "string", "optimize (merge small files), zorder, vacuum, repartition_table (migrate)."),
        Column("why", "string", "Why this slice was chosen, and this action; of a VACUUM, why no less was kept."),
        Column("target_file_bytes", "long", "Size that files were merged up to."),
        Column("predicted_files_after", "long", "Files of the partition afterwards, as predicted."),
        Column("predicted_bytes_rewritten", "long", "Bytes to rewrite, as predicted."),
        Column("predicted_read_files_before", "double", "Files that a random week of the partition opened before."),
        Column("predicted_read_files_after", "double", "Files that a random week of it would open, as predicted."),
        Column("predicted_seconds", "double", "How long it would take, as estimated."),
        Column("files_before", "long", "Files of the partition before."),
        Column("files_after", "long", "Files of the partition afterwards."),
        Column("files_removed", "long", "Files that were replaced."),
        Column("files_added", "long", "Files that replaced them."),
        Column("bytes_removed", "long", "Their bytes."),
        Column("bytes_added", "long", "Bytes that were written."),
        Column("read_files_after", "double", "Files that a random week of the partition opens, from its new bounds."),
        Column("seconds", "double", "How long it took, with all attempts."),
        Column("attempts", "int", "How often it was tried."),
        Column("version", "long", "Version of the table that it made; null: nothing was left to do."),
        Column(
            "fingerprint",
            "string",
            "Of the files it left, by which a later run sees that nothing changed since; null: "
            "more of them wait for the next slice.",
        ),
        Column("started_ts", "timestamp", "When it began, UTC."),
        Column("ingestion_date", "date", "UTC day of started_ts."),
        Column(
            "predicted_files_freed", "long", "Files that a VACUUM would delete, by the log and, on a disk, the folder."
        ),
        Column("files_freed", "long", "Files that it deleted; those of failed writes, which no log knows, too."),
        Column("predicted_bytes_freed", "long", "Bytes of the former."),
        Column("bytes_freed", "long", "Bytes of the latter; null where nobody asked for sizes."),
    ),
)
