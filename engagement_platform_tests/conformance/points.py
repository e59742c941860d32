"""Crash points: every function that commits to a Delta table, to the stores, to the ingest server's spool, or for good
to a file, a bucket, a queue or a topic, before and after its commit.

A point is named `<module>.<function> <table>:<before|after>`, without a table where it commits to something else.
`committing` finds functions that are missing here, `passed` tells a process which of them it passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IN_THE_MATRIX: Mapping[str, str] = {
    "cli.erase._hand_out": "erase",
    "engine.cursors.CursorStore.move": "consumer",
    "engine.stores.BatchMetadataStore.record": "ingest",
    "engine.stores.CheckpointStore.app_id": "restore",
    "engine.stores.CheckpointStore.begin": "ingest",
    "engine.stores.CheckpointStore.rewind": "restore",
    "engine.stores.CheckpointStore.succeed": "ingest",
    "lake.erased._alter": "erase",
    "lake.erased._merge": "erase",
    "lake.lake.Lake._create": "import",
    "lake.lake.Lake.append": "ingest",
    "lake.lake.Lake.set_property": "move by deletion_vectors",
    "lake.optimize.rewrite": "optimize",
    "lake.optimize.vacuum": "vacuum",
    "lake.overwrite._overwrite": "move by overwrite",
    "lake.overwrite.delete_through": "move profiles by merge",
    "lake.overwrite.merge_newer": "move profiles by merge",
    "lake.overwrite.update_rows": "move by merge",
    "lake.restore.restore": "restore",
    "pii.keys.Keyring.destroy": "erase",
    "pii.tombstones.StoredTombstones.ask": "erase",
    "pii.tombstones.StoredTombstones.forget_asked": "erase",
    "pii.tombstones.StoredTombstones.put_up": "erase",
    "pipelines.games.live_ops_store.LiveOpsStore.add": "games",
    "sources.s3_sqs_queue.Queue.delete": "games",
    "sources.s3_sqs_state.S3SqsState.arrive": "games",
    "sources.s3_sqs_state.S3SqsState.forget_files": "games",
    "sources.s3_sqs_state.S3SqsState.forget_messages": "games",
    "sources.s3_sqs_state.S3SqsState.plan": "games",
}
"""Function -> a scenario of the matrix that passes it."""


@dataclass(frozen=True)
class Elsewhere:
    """Functions that no scenario of the matrix has to pass. test: looks at what comes of an end there, or of doing it
    again. why: no scenario of the matrix does."""

    test: str
    why: str
    points: tuple[str, ...]


_COMMAND = "one commit of a command, which is given again"
_STAYS = "no data with it: each run makes, keeps and replaces these"
_FAULT = "only a run after a fault passes it"
_ROTATION = "no job rotates keys"
_DELIVERY = "the ingest server's, which is no job"
_READER = "the consumer of the matrix is a replica in DuckDB, whose cursor moves after DuckDB's commit"
_TRANSACTION = (
    "conformance/test_one_transaction.py"
    "::test_a_transaction_that_ends_before_it_is_over_changes_nothing_and_is_done_by_the_same_call"
)

ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere(
        "alerting/test_store.py::test_what_one_process_is_sending_no_other_takes_unless_the_first_died",
        "no job sends alerts; what watches jobs does",
        (
            "alerting.alerts.Alerts._claim",
            "alerting.alerts.Alerts._settle",
        ),
    ),
    Elsewhere(
        _TRANSACTION,
        "no job keeps alerts; what watches jobs does",
        ("alerting.alerts.Alerts.raised", "alerting.alerts.Alerts.recovered"),
    ),
    Elsewhere(
        "consumers/test_command.py::test_a_batch_is_a_file_that_replaces_itself_when_it_comes_again",
        _READER,
        ("consumers.output.ParquetFiles._write",),
    ),
    Elsewhere(
        "consumers/test_command.py::test_a_folder_that_another_consumer_writes_to_is_refused_and_keeps_its_files",
        _READER,
        ("consumers.output.ParquetFiles.__init__",),
    ),
    Elsewhere(
        "consumers/test_command.py::test_the_part_of_a_line_that_a_kill_left_goes_and_its_row_comes_whole",
        _READER,
        ("consumers.output._end_last_line",),
    ),
    Elsewhere(
        "consumers/test_command.py::test_lines_that_were_written_before_the_cursor_moved_come_again_and_none_is_missing",
        _READER,
        ("consumers.output.JsonLines.put",),
    ),
    Elsewhere(
        "consumers/test_command.py::test_a_snapshot_that_ends_in_the_middle_is_whole_after_the_same_call",
        _READER,
        ("consumers.output.JsonLines.replace", "consumers.output.ParquetFiles.replace"),
    ),
    Elsewhere(
        "defs/test_erase.py::test_a_run_that_ends_before_its_request_is_gone_writes_the_receipt_again",
        "the matrix erases by the command",
        ("defs.erase.erase",),
    ),
    Elsewhere(
        _TRANSACTION,
        "a consumer begins once, before it has read anything",
        ("engine.cursors.CursorStore.begin", "engine.cursors.CursorStore.forget"),
    ),
    Elsewhere(
        "pipelines/page_views/test_kills.py"
        "::test_a_chain_that_is_killed_between_hops_and_commits_ends_in_what_a_loop_makes",
        "Spark commits inside of it, batch by batch",
        (
            "engine.cursors.StreamCheckpoints.claim",
            "engine.cursors.StreamCheckpoints.record",
            "lake.streaming.drain_stream",
        ),
    ),
    Elsewhere(
        _TRANSACTION,
        _COMMAND,
        (
            "engine.cursors.StreamCheckpoints.forget",
            "ingest_server.keys.IngestKeys.add",
            "ingest_server.keys.IngestKeys.revoke",
            "pipelines.games.live_ops_store.LiveOpsStore.reset",
        ),
    ),
    Elsewhere(
        "engine/test_durable_files.py::test_a_process_that_is_killed_anywhere_leaves_the_old_or_the_new_content",
        "a file of its own, which the same command makes anew",
        (
            "consumers.reading.save",
            "local.up.run_services",
            "maintenance.layout.report.keep",
        ),
    ),
    Elsewhere(
        _TRANSACTION,
        "one transaction for each portion, and the next night goes on",
        ("engine.forgotten_batches._forget_some",),
    ),
    Elsewhere(
        "engine/test_lease.py::test_a_killed_holder_is_replaced_at_once_even_while_it_is_a_zombie",
        _STAYS,
        ("engine.lease.Lease.heartbeat", "engine.lease.Lease.release", "engine.lease.LeaseStore.acquire"),
    ),
    Elsewhere(
        "engine/test_lease.py::test_a_killed_waiter_holds_nobody_up", _STAYS, ("engine.lease.LeaseStore._leave",)
    ),
    Elsewhere(
        "engine/test_stores.py::test_processes_that_start_together_agree_on_one_schema",
        _STAYS,
        ("engine.database._ensure_schema",),
    ),
    Elsewhere(_TRANSACTION, _STAYS, ("engine.database.ensure_tables",)),
    Elsewhere(
        _TRANSACTION,
        _FAULT,
        (
            "engine.stores.CheckpointStore.fail",
            "engine.stores.CheckpointStore.reset",
            "sources.s3_sqs_state.S3SqsState.split",
        ),
    ),
    Elsewhere(
        "erasing/test_erasing.py::test_rows_that_are_only_marked_as_removed_leave_their_files_too",
        "only tables with deletion vectors pass it",
        ("lake.erased.rewrite",),
    ),
    Elsewhere(
        "erasing/test_erasing.py::test_files_of_former_versions_that_are_left_where_a_call_ended_go_with_the_same_call",
        "the matrix does not delete at once what former versions keep",
        ("erasing.purge._purge",),
    ),
    Elsewhere(
        "ingest_server/test_delivery.py::test_a_segment_that_comes_again_adds_nothing_wherever_it_stopped",
        _DELIVERY,
        (
            "ingest_server.sinks.FolderSink.put",
            "ingest_server.spool.Spool.remove",
            "lake.store_tables.append",
        ),
    ),
    Elsewhere(
        "ingest_server/test_delivery.py::test_a_bucket_gets_the_same_objects",
        _DELIVERY,
        ("ingest_server.sinks.BucketSink.put",),
    ),
    Elsewhere(
        "ingest_server/test_delivery.py::test_after_a_stop_firehose_gets_only_what_it_has_not_got",
        _DELIVERY,
        ("ingest_server.sinks.FirehoseSink._send", "ingest_server.sinks.FirehoseSink._note"),
    ),
    Elsewhere(
        "ingest_server/test_spool.py::test_after_a_crash_what_was_acknowledged_is_there_and_a_torn_commit_is_not",
        _DELIVERY,
        ("ingest_server.spool.Spool._insert",),
    ),
    Elsewhere(
        "lake/test_capability_probes.py::test_the_probe_tells_what_this_spark_and_delta_can_do",
        "its tables are thrown away",
        ("lake.capability_probes._runs",),
    ),
    Elsewhere(
        "lake/test_driver_lease.py::test_of_two_drivers_that_come_at_once_one_has_the_lake",
        _STAYS,
        ("lake.driver_lease.LeaseObject.write",),
    ),
    Elsewhere(
        "lake/test_fencing.py::test_an_append_that_was_under_way_when_its_transaction_was_closed_fails",
        _FAULT,
        ("lake.fencing.LakeFencing._close",),
    ),
    Elsewhere(
        "lake/test_lake.py::test_columns_that_a_call_had_not_added_where_it_ended_come_with_the_next",
        "a table gets a column once, before a batch begins",
        ("lake.lake.Lake._compare",),
    ),
    Elsewhere(
        _TRANSACTION,
        "stores have to be put back before; a number that was drawn for nothing changes nothing",
        ("engine.stores.CheckpointStore.draw_after",),
    ),
    Elsewhere(
        "lake/test_recovery.py::test_recovering_twice_or_where_nothing_is_lost_changes_nothing",
        "stores have to be lost before",
        ("engine.stores.CheckpointStore.adopt", "engine.stores.CheckpointStore.know"),
    ),
    Elsewhere(
        "lake/test_optimize.py::test_bounds_that_spark_keeps_beside_expired_entries_go_with_them",
        "readers see no difference",
        ("lake.optimize._remove_checksums", "lake.optimize.checkpoint_log"),
    ),
    Elsewhere(
        "lake/test_shared_session.py::test_a_killed_run_leaves_nothing_to_the_next",
        _STAYS,
        ("lake.shared_session._opened",),
    ),
    Elsewhere(
        "local/test_producing.py::test_a_file_goes_through_byte_for_byte",
        "messages of samples and files, which a command sends and sends again when it is given again",
        ("local.producing._hand_over",),
    ),
    Elsewhere(
        "maintenance/guards/test_foreign_commits.py"
        "::test_each_foreign_commit_is_reported_however_many_come_before_the_next_look",
        "no job looks for these; what watches jobs does",
        ("maintenance.guards.foreign_commits.foreign_commits",),
    ),
    Elsewhere(
        "maintenance/layout/test_migrate.py::test_a_migration_that_is_killed_is_begun_anew_or_found_done",
        _COMMAND,
        ("lake.repartition.relay", "maintenance.layout.migrate.run"),
    ),
    Elsewhere(
        "maintenance/layout/test_migrate.py::test_every_layout_can_become_every_other",
        _COMMAND,
        ("lake.repartition.declare",),
    ),
    Elsewhere(
        "maintenance/layout/test_migrate.py::test_a_table_that_holds_something_else_afterwards_is_taken_back",
        "only a migration that was wrong passes it",
        ("lake.restore.rolled_back",),
    ),
    Elsewhere(
        "maintenance/rollback/test_restore.py::test_a_restore_that_ends_anywhere_is_finished_once",
        "only a table with a watermark passes it",
        ("lake.restore._note",),
    ),
    Elsewhere(
        "pii/test_erasure.py::test_an_erasure_that_ends_at_a_commit_is_done_by_the_same_call",
        "the matrix has no events with personal data",
        (
            "ingest_server.erasing.StoredObjects.erase",
            "ingest_server.spool.empty",
            "lake.store_tables.purge",
            "lake.store_tables.remove",
        ),
    ),
    Elsewhere(
        "pii/test_vault.py::test_wherever_the_first_delivery_ends_the_next_has_the_same_keys_and_adds_what_is_missing",
        "made once, before anything is in it",
        ("lake.store_tables.create", "pii.keys.Keyring._found_secret", "pii.keys.Keyring._make"),
    ),
    Elsewhere(
        "pii/test_vault.py::test_a_rotation_that_stopped_between_two_days_is_finished_by_the_next_and_an_erasure_in_between_is_true",
        _ROTATION,
        ("lake.store_tables.replace",),
    ),
    Elsewhere(
        "pii/test_vault.py::test_wherever_a_rotation_ends_everything_opens_and_the_next_one_leaves_no_former_key",
        _ROTATION,
        (
            "pii.keys.Keyring._rewrap",
            "pii.keys.Keyring.forget_former",
            "pii.keys.Keyring.rotate",
            "pii.master.LocalMaster._write",
            "pii.master.LocalMaster.forget_former",
        ),
    ),
    Elsewhere(
        _TRANSACTION,
        "what judges figures forgets them, which no scenario of the matrix does",
        ("pipelines.games.live_ops_store.LiveOpsStore.forget",),
    ),
    Elsewhere(
        "pipelines/games/test_erasing.py"
        "::test_nothing_is_taken_out_while_a_batch_is_half_done_and_the_same_call_does_the_rest",
        _COMMAND,
        ("pipelines.games.erasing.PlayersKept.erase",),
    ),
    Elsewhere(
        "pipelines/profiles/test_rematerialize.py::test_what_was_deleted_long_ago_is_forgotten_where_a_retention_is_set",
        "the scenarios set no retention",
        ("lake.overwrite.delete_where",),
    ),
    Elsewhere(
        _TRANSACTION,
        "the matrix replays nothing",
        ("sources.s3_sqs_state.S3SqsState.renew",),
    ),
    Elsewhere(
        "pipelines/games/test_raw_objects.py::test_an_erasure_that_stops_at_an_object_is_done_by_the_same_call",
        "the matrix erases no player",
        (
            "pipelines.games.raw_objects.RawObjects._remove_versions_before",
            "pipelines.games.raw_objects.RawObjects._write_anew",
            "sources.s3_sqs_state.S3SqsState.rewriting",
            "sources.s3_sqs_state.S3SqsState.rewritten",
        ),
    ),
    Elsewhere(
        "sources/test_s3_sqs.py::test_a_message_that_cannot_be_read_is_a_dead_letter_before_it_is_deleted",
        "every announcement of the matrix can be read",
        ("sources.s3_sqs_queue.send_dead_letter",),
    ),
)

LISTED = (*IN_THE_MATRIX, *(point for each in ELSEWHERE for point in each.points))
"""Every function that commits."""

HELPERS = frozenset(
    {
        "alerting.alerts.Alerts._writing",
        "engine.database.writing",
        "engine.durable_files.replacing",
        "engine.durable_files.write_durably",
        "engine.stores._alone",
        "lake.driver_lease.LeaseObject._call",
        "lake.lake.Lake._set",
        "lake.lake.save_under",
        "sources.s3_sqs_queue.Queue._by_tens",
        "sources.s3_sqs_queue.Queue._call",
    }
)
"""Functions that commit for others; those are the points."""

_A_LOG = "what a service of this machine says, cut where it is long"
_INTO_A_FILE = "into the file that `save` keeps or throws away as a whole"
_A_SPOOL = "a copy of an object, into a file without a name that is gone with its reader"
_MADE_ANEW = "for services of this machine, each start of which makes it anew"

NO_COMMIT: Mapping[str, str] = {
    "cli.<module>": "names the commands; what they call is listed",
    "cli.consumers.consume": "`replace` is that of its output, which is listed",
    "cli.layout.doctor": "a page to be looked at",
    "consumers.output.deliver": "`put` and `commit`, which are listed",
    "consumers.reader.CursorReader._next": "`commit`, which is listed",
    "consumers.reading._csv": _INTO_A_FILE,
    "consumers.reading._parquet": _INTO_A_FILE,
    "defs.retention.remove_before": "what Dagster keeps of runs that are over, of which each night removes more",
    "engine.durable_files.private_file": "an empty file",
    "engine.database.reading": "its transaction only reads",
    "ingest_server.spool.Spool.__init__": "an empty file that is locked; the spool is opened by others",
    "ingest_server.spool.connected": "a connection; what is committed by it is listed",
    "lake.jars._resolve": "a cache, whole or absent, and downloaded anew where it is",
    "lake.jars.own_jar": "a cache, whole or absent, and compiled anew where it is",
    "lake.optimize.unused_files": "what VACUUM would remove; nothing is",
    "local.aws.EmbeddedAws.furnish": _MADE_ANEW,
    "local.connect.connect_child": _MADE_ANEW,
    "local.up._make_room": "the file of an earlier run goes, and a new one is written once all runs",
    "local.home.locked_home": "who holds the home, for as long as they do",
    "local.ingest.make_sample_keys": "keys of the sample traffic; one that is lost is made anew",
    "local.kafka.EmbeddedKafka.child": _MADE_ANEW,
    "local.kafka.EmbeddedKafka.create_topics": "topics, made where they are not, at each start",
    "local.orchestrator.dagster_children": _MADE_ANEW,
    "local.process.Supervisor._launch": _A_LOG,
    "local.process.Supervisor._make_room": _A_LOG,
    "local.services.Services.children": _MADE_ANEW,
    "pipelines.games.raw_objects.RawObjects._content": _A_SPOOL,
    "sources.s3_sqs_queue.Queue._keep": "messages stay invisible for longer; at worst they come again and are known",
}
"""Function that the finder takes for one that commits -> why it is none."""

SITES: Mapping[str, int] = {
    "cli.consumers.consume": 2,
    "consumers.output.JsonLines.put": 3,
    "consumers.output.JsonLines.replace": 4,
    "consumers.output.ParquetFiles._write": 3,
    "consumers.output.ParquetFiles.replace": 2,
    "consumers.reading._parquet": 2,
    "defs.erase.erase": 2,
    "engine.durable_files.private_file": 3,
    "engine.durable_files.replacing": 7,
    "erasing.purge._purge": 2,
    "ingest_server.erasing.StoredObjects.erase": 3,
    "lake.erased._merge": 2,
    "lake.lake.Lake._compare": 2,
    "lake.lake.Lake._create": 2,
    "lake.lake.Lake.append": 2,
    "lake.optimize.checkpoint_log": 2,
    "lake.overwrite.merge_newer": 2,
    "lake.overwrite.update_rows": 2,
    "lake.restore.restore": 2,
    "lake.store_tables.append": 2,
    "lake.store_tables.purge": 2,
    "local.aws.EmbeddedAws.furnish": 2,
    "local.connect.connect_child": 2,
    "local.home.locked_home": 3,
    "local.ingest.make_sample_keys": 3,
    "local.kafka.EmbeddedKafka.child": 3,
    "local.orchestrator.dagster_children": 2,
    "local.process.Supervisor._make_room": 3,
    "local.services.Services.children": 2,
    "maintenance.layout.report.keep": 2,
    "pii.keys.Keyring.rotate": 2,
}
"""Function of any of these -> in how many places it commits, as the finder counts them; in one where it is not here."""

UPKEEP = (
    "engine.database.", "engine.lease.", "lake.capability_probes.", "lake.driver_lease.", "lake.shared_session.",
)  # fmt: skip
"""Modules whose commits are of leases, schemas and sessions: each run passes them many times, and no data with them."""
