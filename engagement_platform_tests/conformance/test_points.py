"""A function that commits and is no crash point fails here, before anything can be lost by it."""

from __future__ import annotations

import ast
import re

import pytest

from engagement_platform_tests.conformance.committing import committing, functions, sites
from engagement_platform_tests.conformance.points import ELSEWHERE, HELPERS, IN_THE_MATRIX, LISTED, NO_COMMIT, SITES
from engagement_platform_tests.conformance.scenarios import SCENARIOS
from engagement_platform_tests.docs.pages import ROOT, TESTS, text, tree


def test_every_function_that_commits_is_listed_and_every_listed_one_commits() -> None:
    found = set(sites()) - set(NO_COMMIT) - HELPERS
    assert found - set(LISTED) == set(), "add them to conformance/points.py, and a scenario that passes them"
    assert set(LISTED) - found == set(), "these commit nothing any more"
    assert len(LISTED) == len(set(LISTED))
    assert not set(NO_COMMIT) & set(LISTED)
    assert (set(NO_COMMIT) | HELPERS) - functions() == set(), "there are no such functions any more"
    assert set(NO_COMMIT) - set(sites()) == set(), "the finder takes these for none that commit"
    assert all(NO_COMMIT.values())


def test_every_function_commits_in_as_many_places_as_are_counted() -> None:
    assert {name: (SITES.get(name, 1), now) for name, now in sites().items() if now != SITES.get(name, 1)} == {}, (
        "in so many places by SITES of conformance/points.py, in so many now: see that the scenario or the test that "
        "stands there for the function disturbs each new place, too, add another one where it does not, and count it"
    )
    assert set(SITES) - set(sites()) == set(), "these commit nothing any more"


def test_each_point_is_in_a_scenario_or_has_a_test_that_there_is_and_a_reason() -> None:
    assert set(IN_THE_MATRIX.values()) <= {scenario.name for scenario in SCENARIOS}
    assert [each.test for each in ELSEWHERE if not _is_there(each.test)] == []
    assert [each.test for each in ELSEWHERE if not each.why or not each.points] == []


def test_each_crash_point_of_the_page_is_listed() -> None:
    page = text(ROOT / "docs" / "reliability.md")
    for section in ("runs", "races"):
        rows = page.partition(f"figures of {section}:")[2].partition(f"end of figures of {section}")[0]
        points = {each.partition(" ")[0] for each in re.findall(r"\| `([^`]+):(?:before|after)` \|", rows)}
        assert points
        assert points - set(LISTED) == set(), f"the page is of functions that are gone: run `{section} --write` again"


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return (TESTS / file).is_file() and name in {
        node.name for node in tree(TESTS / file).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(
    "does",
    [
        "frame.write.format('delta').mode('append').save(uri)",
        "frame.write.saveAsTable('t')",
        "frame.write.insertInto('t')",
        "frame.writeTo('t').overwritePartitions()",
        "frame.writeStream.toTable('t')",
        "query = frame.writeStream.format('delta').start(uri)",
        "frame.writeStream.foreachBatch(lambda rows, number: None).start()",
        "save_under(frame.write, uri, txn)",
        "lake.save_under(frame.write, uri, txn)",
        "spark.sql(f'MERGE INTO {name} USING s ON true WHEN MATCHED THEN DELETE').collect()",
        "spark.sql(statement)",
        "source.mergeInto(name, same).whenMatched().delete().merge()",
        "merge.merge()",
        "write_deltalake(uri, rows, mode='append')",
        "deltalake.write_deltalake(uri, rows)",
        "DeltaTable.create(uri, schema)",
        "DeltaTable(uri).update({'a': '1'})",
        "DeltaTable(uri).alter.set_table_properties({'a': 'b'})",
        "DeltaTable(uri).optimize.z_order(['a'])",
        "DeltaTable(uri).vacuum(0, dry_run=False)",
        "DeltaTable(uri).merge(rows, 'a = b').when_matched_delete().execute()",
        "DeltaTable.forPath(spark, uri).delete('a = 1')",
        "found = log.open_log(uri)\n    found.delete('a = 1')",
        "if (found := log.open_log(uri)) is not None:\n        found.restore(1)",
        "found.optimize.compact()",
        "found.create_checkpoint()",
        "self.table = DeltaTable(uri)\n    self.table.delete()",
        "with writing(engine, 'name') as connection:\n        pass",
        "with database.writing(engine, 'name') as connection:\n        pass",
        "def inner() -> None:\n        frame.write.save(uri)\n    inner()",
        "with _transaction(connection):\n        pass",
        "with replacing(path) as file:\n        pass",
        "durable_files.write_durably(path, b'')",
        "os.fsync(file.fileno())",
        "client.put_object(Bucket=bucket, Key=key)",
        "self._call('put_object', Body=body)",
        "list(self._by_tens('delete_message_batch', receipts))",
        "producer.produce(topic, value)",
        "client.delete_objects(Bucket=bucket, Delete=keys)",
        "client.upload_file(path, bucket, key)",
        "client.upload_fileobj(file, bucket, key)",
        "client.copy_object(Bucket=bucket, Key=key, CopySource=source)",
        "queue.send_message_batch(QueueUrl=url, Entries=entries)",
        "self._call('delete_message', ReceiptHandle=receipt)",
        "with engine.begin() as connection:\n        connection.execute(KEYS.delete())",
        "with engine.connect() as connection, connection.begin():\n        pass",
        "os.replace(made, path)",
        "os.rename(made, path)",
        "made.replace(path)",
        "made.rename(path)",
        "path.unlink(missing_ok=True)",
        "path.write_text('')",
        "path.write_bytes(b'')",
        "pq.write_table(rows, path)",
        "frame.write.mode('append').parquet(uri)",
        "frame.write.json(uri)",
        "open(path, 'w')",
        "with path.open('a', encoding='utf-8') as file:\n        pass",
        "with path.open(mode='wb') as file:\n        pass",
        "with os.fdopen(made, 'r+') as file:\n        pass",
        "os.open(path, os.O_RDWR | os.O_CREAT, 0o600)",
        "path.touch()",
        "path.symlink_to(other)",
        "shutil.move(made, path)",
        "shutil.copytree(made, path)",
        "shutil.rmtree(path)",
        "os.truncate(path, 0)",
        "os.remove(path)",
        "os.link(path, other)",
        "shutil.copy(path, other)",
        "shutil.copyfileobj(stream, file)",
        "rmtree(path)",
        "write_table(rows, path)",
        "with pq.ParquetWriter(path, schema) as writer:\n        pass",
        "pyarrow.dataset.write_dataset(rows, folder)",
        "with filesystem.open_output_stream(path) as file:\n        pass",
        "file = NamedTemporaryFile(dir=folder, delete=False)",
        "with engine.connect() as connection:\n        connection.commit()",
        "sqlite3.connect(path).execute('DELETE FROM keys')",
        "duckdb.connect(path)",
        "client.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)",
        "topic.publish(Message=text)",
        "DeltaTable.createIfNotExists(spark).tableName('t').execute()",
        "DeltaTable.convertToDelta(spark, name)",
        "found = log.open_version(uri)\n    found.delete('a')",
        "log.open_version(uri).alter.set_table_properties({'a': 'b'})",
        "open_version(uri).restore(1)",
        "now, then = (log.open_version(uri, at) for at in (None, 1))\n    then.delete('a')",
        "for found in map(DeltaTable, uris):\n        found.delete('a')",
        "[found.delete('a') for found in map(DeltaTable, uris)]",
        "found = {uri: DeltaTable(uri)}\n    found[uri].delete('a')",
        "filesystem.delete_file(path)",
        "filesystem.move(made, path)",
        "filesystem.delete_dir(folder)",
        "filesystem.delete_dir_contents(folder)",
        "filesystem.copy_file(path, other)",
        "pq.write_to_dataset(rows, folder)",
        "pool.submit(client.put_object, Bucket=bucket, Key=key)",
        "pool.submit(found.write.parquet, uri)",
        "then(partial(write_deltalake, uri))",
        "list(map(Path.unlink, paths))",
        "list(map(os.replace, made, paths))",
        "frame.write.jdbc(url, 'rows')",
        "frame.write.mode('append').xml(uri)",
        "firehose.put_record(DeliveryStreamName=name, Record=record)",
        "sqs.purge_queue(QueueUrl=url)",
        "client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=body)",
        "self._call('change_message_visibility', ReceiptHandle=receipt, VisibilityTimeout=0)",
        "put = client.put_object\n    put(Bucket=bucket, Key=key)",
        "found = DeltaTable(uri)\n    Thread(target=found.delete).start()",
    ],
)
def test_a_commit_is_found_in_whatever_style_it_is_written(does: str) -> None:
    assert committing(ast.parse(f"def commits():\n    {does}\n")) == {"commits": 1}
    in_a_class = f"class One:\n  def commits(self):\n    {does}\n  def reads(self):\n    return 1\n"
    assert committing(ast.parse(in_a_class)) == {"One.commits": 1}
    assert committing(ast.parse(f"def commits():\n    {does}\n    os.fsync(file)\n")) == {"commits": 2}


def test_a_table_that_is_given_is_one_by_its_annotation() -> None:
    assert committing(ast.parse("def commits(found: DeltaTable | None):\n    found.delete('a')\n")) == {"commits": 1}


@pytest.mark.parametrize(
    "keeps",
    [
        "def __init__(self, uri):\n    self._found = DeltaTable(uri)",
        "def open(self):\n    self._found = log.open_log(self.uri)",
        "def __init__(self, found: DeltaTable):\n    self._found: DeltaTable = found",
        "_found: DeltaTable",
    ],
)
def test_a_table_that_an_object_keeps_is_one_in_all_of_its_methods(keeps: str) -> None:
    kept = "\n".join(f"  {line}" for line in keeps.splitlines())
    does = "  def commits(self):\n    self._found.alter.add_columns([])\n"
    reads = "  def reads(self):\n    self._other.update({})\n"
    assert committing(ast.parse(f"class One:\n{kept}\n{does}{reads}")) == {"One.commits": 1}
    other = "class Other:\n  def reads(self):\n    self._found.update({})\n"
    assert committing(ast.parse(f"class One:\n{kept}\n{other}")) == {}


@pytest.mark.parametrize(
    "does",
    [
        "spark.sql('SHOW VIEWS').collect()",
        "spark.sql(f'DESCRIBE DETAIL {name}')",
        "DeltaTable(uri).vacuum(0, dry_run=True)",
        "known.update({'a': 1})",
        "dg.Definitions.merge(*parts, bound)",
        "thread.start()",
        "connection.execute(KEYS.delete())",
        "client.get_object(Bucket=bucket, Key=key)",
        "self._call('receive_message', QueueUrl=url)",
        "DeltaTable(uri).to_pyarrow_table()",
        "text.replace('a', 'b')",
        "now.replace(minute=0)",
        "dataclasses.replace(one, name='a')",
        "self.checkpoints.begin(manifest, fences=fences)",
        "spark.read.parquet(uri)",
        "open(path)",
        "path.open()",
        "path.open('rb')",
        "gzip.open(path, 'rt')",
        "opened.open(home, 'engagement/data')",
        "os.open(path, os.O_RDONLY)",
        "self._cursors.move(cursor, place, rows)",
        "replacing = [each for each in commits if each.files_removed]\n    return replacing",
        "log.open_version(uri).vacuum(dry_run=True)",
    ],
)
def test_what_only_reads_or_changes_something_else_is_no_commit(does: str) -> None:
    assert committing(ast.parse(f"def reads():\n    {does}\n")) == {}
