"""Crash points: every function that commits to a Delta table, to the stores, to the ingest server's spool, or for good
to a file, a bucket, a queue or a topic, before and after its commit.

A point is named `<module>.<function> <table>:<before|after>`, without a table where it commits to something else. A
process that `watch`es calls its observer at each; so no product code knows of them.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import deltalake
from botocore.client import BaseClient
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableOptimizer
from sqlalchemy import Connection

from engagement_platform.lake.contract import Table
from engagement_platform.lake.optimize import Place
from engagement_platform_tests.docs.pages import PACKAGE, modules, tree

IN_THE_MATRIX: Mapping[str, str] = {
    "cli.erase.erase": "erase",
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
_READER = "the consumer of the matrix is a replica, which keeps its rows and its cursor in one transaction"

ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere(
        "alerting/test_store.py::test_what_one_process_is_sending_no_other_takes_unless_the_first_died",
        "no job sends alerts; what watches jobs does",
        (
            "alerting.alerts.Alerts._claim",
            "alerting.alerts.Alerts._settle",
            "alerting.alerts.Alerts.raised",
            "alerting.alerts.Alerts.recovered",
        ),
    ),
    Elsewhere(
        "consumers/test_command.py::test_a_batch_is_a_file_that_replaces_itself_when_it_comes_again",
        _READER,
        ("consumers.output.ParquetFiles._write",),
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
        "engine/test_cursors.py::test_a_cursor_moves_only_for_who_has_seen_it_last",
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
        "engine/test_cursors.py::test_a_checkpoint_folder_belongs_to_one_stream_and_a_stream_to_one_folder",
        _COMMAND,
        ("engine.cursors.StreamCheckpoints.forget",),
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
        ("engine.database._ensure_schema", "engine.database.ensure_tables"),
    ),
    Elsewhere(
        "engine/test_stores.py::test_unfinished_are_the_running_and_failed_batches_of_all_jobs_but_not_those_a_reset_gave_up",
        _FAULT,
        ("engine.stores.CheckpointStore.fail", "engine.stores.CheckpointStore.reset"),
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
        ("ingest_server.sinks.FirehoseSink._send", "ingest_server.sinks.FirehoseSink.put"),
    ),
    Elsewhere(
        "ingest_server/test_spool.py::test_after_a_crash_what_was_acknowledged_is_there_and_a_torn_commit_is_not",
        _DELIVERY,
        ("ingest_server.spool.Spool._insert",),
    ),
    Elsewhere(
        "ingest_server/test_server.py::test_keys_are_made_listed_and_revoked_from_the_command_line",
        _COMMAND,
        ("ingest_server.keys.IngestKeys.add", "ingest_server.keys.IngestKeys.revoke"),
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
        "lake/test_lake.py::test_missing_columns_are_added_only_with_evolve_and_only_when_all_else_agrees",
        "a table gets a column once, before a batch begins",
        ("lake.lake.Lake._compare",),
    ),
    Elsewhere(
        "lake/test_recovery.py::test_recovering_twice_or_where_nothing_is_lost_changes_nothing",
        "stores have to be lost before",
        ("engine.stores.CheckpointStore.adopt", "engine.stores.CheckpointStore.know"),
    ),
    Elsewhere(
        "lake/test_optimize.py::test_bounds_that_spark_keeps_beside_expired_entries_go_with_them",
        "readers see no difference",
        ("lake.optimize.checkpoint_log",),
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
        ("lake.repartition.cluster",),
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
        ),
    ),
    Elsewhere(
        "pipelines/games/test_job.py"
        "::test_what_a_batch_that_was_given_up_has_left_in_tables_is_counted_once_and_a_reset_counts_it_too",
        _COMMAND,
        ("pipelines.games.live_ops_store.LiveOpsStore.reset",),
    ),
    Elsewhere(
        "pipelines/games/test_live_ops.py::test_the_commands_judge_show_a_player_and_forget",
        _COMMAND,
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
        "pipelines/games/test_job.py::test_a_batch_that_was_begun_and_not_read_is_halved_at_the_next_attempt",
        _FAULT,
        ("sources.s3_sqs_state.S3SqsState.split",),
    ),
    Elsewhere(
        "pipelines/games/test_job.py::test_a_replay_that_was_interrupted_is_finished_first_whatever_is_asked_for_next",
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

HELPERS = frozenset(
    {
        "alerting.alerts.Alerts._writing",
        "engine.database.writing",
        "engine.durable_files.replacing",
        "engine.durable_files.write_durably",
        "engine.stores._alone",
        "lake.driver_lease.LeaseObject._call",
        "lake.lake.save_under",
        "sources.s3_sqs_queue.Queue._by_tens",
        "sources.s3_sqs_queue.Queue._call",
    }
)
"""Functions that commit for others; those are the points."""

_MADE_ANEW = "for services of this machine, each start of which makes it anew"

NO_COMMIT: Mapping[str, str] = {
    "cli.consumers.consume": "`replace` is that of its output, which is listed",
    "cli.layout.doctor": "a page to be looked at",
    "consumers.reading._csv": "into the file that `save` keeps or throws away as a whole",
    "defs.retention.remove_before": "what Dagster keeps of runs that are over, of which each night removes more",
    "engine.durable_files.private_file": "an empty file",
    "engine.database.reading": "its transaction only reads",
    "lake.jars._resolve": "a cache, whole or absent, and downloaded anew where it is",
    "local.connect.connect_child": _MADE_ANEW,
    "local.ingest.make_sample_keys": "keys of the sample traffic; one that is lost is made anew",
    "local.kafka.EmbeddedKafka.child": _MADE_ANEW,
    "local.orchestrator.dagster_children": _MADE_ANEW,
    "local.services.Services.children": _MADE_ANEW,
}
"""Function that the finder takes for one that commits -> why it is none."""

UPKEEP = (
    "engine.database.", "engine.lease.", "lake.capability_probes.", "lake.driver_lease.", "lake.shared_session.",
)  # fmt: skip
"""Modules whose commits are of leases, schemas and sessions: each run passes them many times, and no data with them."""

_OBSERVED = frozenset(
    point
    for point in (*IN_THE_MATRIX, *(point for each in ELSEWHERE for point in each.points))
    if not point.startswith(UPKEEP)
)

_CALLED = {
    "writing", "_alone", "_writing", "_transaction", "save_under", "write_deltalake", "convert_to_deltalake",
    "fsync", "replacing", "write_durably",
}  # fmt: skip
"""Functions, of whatever module, that commit."""
_OUTSIDE = {
    "copy_object": "CopyObject",
    "delete_message": "DeleteMessage",
    "delete_message_batch": "DeleteMessageBatch",
    "delete_object": "DeleteObject",
    "delete_objects": "DeleteObjects",
    "put_object": "PutObject",
    "put_record_batch": "PutRecordBatch",
    "send_message": "SendMessage",
    "send_message_batch": "SendMessageBatch",
    "upload_file": "PutObject",
    "upload_fileobj": "PutObject",
}
"""Methods of boto3 that commit, called or named -> what boto3 calls them below."""
_METHODS = {
    "insertInto", "mergeInto", "save", "saveAsTable", "sql", "toTable", "writeTo",
    "executeCompaction", "executeZOrderBy", "restoreToTimestamp", "restoreToVersion",
    "cleanup_metadata", "create_checkpoint", "create_write_transaction",
    "produce", "rename", "unlink", "write_bytes", "write_table", "write_text", *_OUTSIDE,
}  # fmt: skip
"""Methods, of whatever object, that commit: Spark's, those that only delta-rs, Kafka's client or boto3 has, those of
paths and of Parquet's writer."""
_OTHERWISE: Mapping[str, Callable[[ast.Call], bool]] = {
    # An SQLAlchemy engine's or connection's; stores and cursors are told what begins.
    "begin": lambda call: not call.args and not call.keywords,
    # A path's, or `os.replace`; that of a text has two arguments, those of times and records have names.
    "replace": lambda call: not call.keywords and (len(call.args) == 1 or ast.unparse(call.func) == "os.replace"),
    # Spark's MERGE ends with a call without arguments, which no other `merge` has.
    "merge": lambda call: not call.args and not call.keywords,
}
"""Methods that commit only if they are called like this."""
_OF_A_TABLE = {"alter", "create", "delete", "merge", "optimize", "repair", "restore", "update", "vacuum"}
"""Names that mean one of a `DeltaTable`, and something else of other things."""
_OF_A_PART = {("optimize", "compact"), ("optimize", "z_order")}
_OPENS = ("DeltaTable", "open_log(")
_READS = ("SHOW", "DESCRIBE")


def commits() -> set[str]:
    """The functions of the product that commit, found by what they call."""
    return _of_the_product(committing) - set(NO_COMMIT) - HELPERS


def functions() -> set[str]:
    """Every function of the product."""
    return _of_the_product(lambda module: {name for name, *_ in _functions(module)})


def _of_the_product(of: Callable[[ast.Module], set[str]]) -> set[str]:
    return {
        f"{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.').removesuffix('.__init__')}.{function}"
        for path in modules()
        for function in of(tree(path))
    }


def committing(module: ast.Module) -> set[str]:
    """The functions of a module that commit, those of a class as `Class.function`."""
    found = _functions(module)
    return {name for name, function, kept in found if any(map(_commits(function, kept), ast.walk(function)))}


def _functions(
    node: ast.AST, within: str = "", kept: frozenset[str] = frozenset()
) -> Iterator[tuple[str, ast.AST, frozenset[str]]]:
    """Every function, with what is inside of it, and the tables that its class keeps in attributes; what a module does
    outside of them is `<module>`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{child.name}", child, kept
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.", _attributes(child))
        elif isinstance(child, ast.stmt):
            yield f"{within}<module>", child, kept


def _attributes(of: ast.ClassDef) -> frozenset[str]:
    """The attributes in which a class keeps a `DeltaTable`, by its methods and its own annotations."""
    names = {name for statement in of.body for name in _tables(statement)}
    declared = {each.target for each in of.body if isinstance(each, ast.AnnAssign)}
    own = {f"self.{target.id}" for target in declared if isinstance(target, ast.Name) and target.id in names}
    return frozenset(own | {name for name in names if name.startswith("self.")})


def _commits(function: ast.AST, kept: frozenset[str]) -> Callable[[ast.AST], bool]:
    """Whether something in a function commits. kept: tables that it has without saying so."""
    tables = _tables(function) | kept

    def commits(node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="writeStream"):
                return True
            case ast.Call(args=[ast.Constant(name), *_]) if name in _OUTSIDE:
                return True
            case ast.Call(func=ast.Name(name)):
                return name in _CALLED
            case ast.Call(func=ast.Attribute(of, name)):
                return not _reads(node) and (name in _CALLED | _METHODS or _is_of_a_table(of, name, node, tables))
        return False

    return commits


def _reads(call: ast.Call) -> bool:
    """Whether it is a statement, or a trial, that changes nothing."""
    said = [ast.unparse(each).lstrip("f'\"").upper() for each in call.args]
    return any(each.startswith(_READS) for each in said) or "dry_run=True" in map(ast.unparse, call.keywords)


def _is_of_a_table(of: ast.expr, name: str, call: ast.Call, tables: Collection[str]) -> bool:
    part = of.attr if isinstance(of, ast.Attribute) else ""
    if (part, name) in _OF_A_PART or (name in _OTHERWISE and _OTHERWISE[name](call)):
        return True
    # `table.alter.add_columns()` is of the table, too.
    return not _OF_A_TABLE.isdisjoint({name, part}) and _is_table(of, tables)


def _tables(function: ast.AST) -> set[str]:
    """The names by which a function has a `DeltaTable`, among its arguments and what it assigns."""
    found = set[str]()
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as what) if "DeltaTable" in ast.unparse(what):
                found.add(name)
            case ast.Assign(targets=targets, value=value) if _is_table(value, found):
                found |= {ast.unparse(target) for target in targets}
            case ast.AnnAssign(target=target, annotation=what) if "DeltaTable" in ast.unparse(what):
                found.add(ast.unparse(target))
            case ast.NamedExpr(target=target, value=value) if _is_table(value, found):
                found.add(ast.unparse(target))
    return found


def _is_table(value: ast.AST, tables: Collection[str]) -> bool:
    said = ast.unparse(value)
    return any(each in said for each in _OPENS) or any(f"{said}.".startswith(f"{each}.") for each in tables)


def watch(observe: Callable[[str], None]) -> None:
    """From now on call `observe` with each crash point that this process passes: a client of a Connect server.

    The same point passed again is called `… #2`, and so on. A table that delta-rs creates is no point: a process that
    ends there has made it or not.
    """
    from pyspark.sql.connect.client import SparkConnectClient

    from engagement_platform.engine import database

    writing, count = database.writing, Counter[str]()

    def begun() -> str | None:
        if (point := _committing(sys._getframe(2))) is None:
            return None
        count[point] += 1
        point = point if count[point] == 1 else f"{point} #{count[point]}"
        observe(f"{point}:before")
        return point

    def observed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            point = begun()
            done = function(*given, **named)
            if point is not None:
                observe(f"{point}:after")
            return done

        return call

    @contextmanager
    def written(*given: Any) -> Iterator[Connection]:
        point = begun()
        with writing(*given) as connection:
            yield connection
        if point is not None:
            observe(f"{point}:after")

    def asked(method: Callable[..., Any]) -> Callable[..., Any]:
        seen = observed(method)

        @wraps(method)
        def ask(client: object, operation: str, given: object) -> Any:
            return (seen if operation in _OUTSIDE.values() else method)(client, operation, given)

        return ask

    for of, methods in (
        (SparkConnectClient, ("execute_command",)),
        (DeltaTable, ("cleanup_metadata", "create_checkpoint", "create_write_transaction", "delete", "vacuum")),
        (TableOptimizer, ("compact", "z_order")),
        (os, ("fsync",)),
        (Path, ("write_text",)),
    ):
        for method in methods:
            setattr(of, method, observed(getattr(of, method)))
    BaseClient._make_api_call = asked(BaseClient._make_api_call)
    # Modules that are imported later have it from there.
    deltalake.write_deltalake = written_by_rs = observed(write_deltalake)
    replace(write_deltalake, written_by_rs)
    replace(writing, written)


def replace(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function in the place of one of the product's, in every module that has imported it."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if name.startswith("engagement_platform.") else ():
            if value is function:
                setattr(module, attribute, other)


def _committing(frame: FrameType | None) -> str | None:
    """The innermost function of the product below which a frame is, where it is one of those that are observed."""
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname.partition(".<locals>")[0]
        point = f"{module.removeprefix('engagement_platform.')}.{function}"
        if module.startswith("engagement_platform.") and point not in HELPERS:
            return f"{point}{_table(frame)}" if point in _OBSERVED else None
        frame = frame.f_back
    return None


def _table(frame: FrameType) -> str:
    """The table that a function of the lake has at hand."""
    for value in frame.f_locals.values():
        of = getattr(value, "place", value)
        if isinstance(of, Table | Place):
            return f" {of.name}"
    return ""
