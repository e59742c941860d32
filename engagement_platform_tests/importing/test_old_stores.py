"""What old stores are like: compressed in many ways, nested, in tiny files, on S3, and changed while they are read."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.orc as paorc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from engagement_platform.importing.files import CompressionUnknown, NothingToImport, found
from engagement_platform.importing.job import Import, ImportDiffers, SourceChanged
from engagement_platform.importing.schema import inferred
from engagement_platform.lake import imported as tables
from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.importing.stores import called, imported, quarantined, row, rows_in, text_of

PARQUET = ("NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4", "BROTLI")
ORC = ("UNCOMPRESSED", "SNAPPY", "ZLIB", "ZSTD", "LZ4")


def squeezed(codec: str) -> Callable[[bytes], bytes]:
    """Compresses a whole file. The two that the standard library has are made by it."""

    def compress(content: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(content)
        return bytes(sink.getvalue().to_pybytes())

    return compress


COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": squeezed("zstd"), ".lz4": squeezed("lz4"),
    ".br": squeezed("brotli"),
}  # fmt: skip


def written(source: Path, name: str, content: bytes) -> None:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(content)


def numbered(files: Iterable[Path]) -> tuple[int, int]:
    """(how many, bytes of all) as they lie on the disk."""
    sizes = [file.stat().st_size for file in files]
    return len(sizes), sum(sizes)


def test_every_compression_of_every_format_in_nested_folders_becomes_one_table_and_the_report_says_what_lies_there(
    home: Path,
) -> None:
    source, rows = home / "store", []
    for ending, compress in COMPRESSED.items():
        for kind in ("csv", "jsonl"):
            # Two streams one after the other, as parallel compressors write them.
            first, second = [row(n) for n in range(7)], [row(n) for n in range(7, 12)]
            header, _, lines = text_of(second, kind).partition(b"\n") if kind == "csv" else (b"", b"", b"")
            assert header == (b"id,name,score,at" if kind == "csv" else b"")
            content = compress(text_of(first, kind)) + compress(lines or text_of(second, kind))
            written(source, f"{kind}/as{ending}/deep down/part-0.{kind}{ending}", content)
            rows += [*first, *second]
    for format_, codecs in (("parquet", PARQUET), ("orc", ORC)):
        for codec in codecs:
            some = pa.Table.from_pylist([row(n) for n in range(9)])
            place = source / format_ / f"{codec.lower()}.{format_}"
            place.parent.mkdir(parents=True, exist_ok=True)
            (pq.write_table if format_ == "parquet" else paorc.write_table)(some, place, compression=codec)
            rows += some.to_pylist()
    there = numbered(path for path in source.rglob("*") if path.is_file())
    written(source, "_temporary/0/part-9.csv", b"id\n99\n")
    written(source, "csv/.part-0.csv.crc", b"crc")

    report = imported("store", "old/clicks", "--yes")

    table = home / "home/lake/old/clicks"
    assert Counter(tuple(one.values()) for one in rows_in(table)) == Counter(tuple(one.values()) for one in rows)
    assert (report["rows"], report["rejected"]) == (len(rows), 0)
    assert (report["files_before"], report["bytes_before"]) == there
    in_use = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    assert (report["files_after"], report["bytes_after"]) == numbered(in_use)
    assert report["files_after"] == 1
    assert min(report["seconds_before"], report["seconds_after"]) > 0


def test_compressed_text_below_hive_folders_keeps_every_line_and_what_the_folders_say(home: Path) -> None:
    expected = []
    folders = [("7", "S%C3%A3o%20Paulo", 7, "São Paulo"), ("12", "__HIVE_DEFAULT_PARTITION__", 12, None)]
    for place, (ending, compress) in enumerate(COMPRESSED.items()):
        hour, city, told_hour, told_city = folders[place % 2]
        lines = [f"line {n} of {ending} €, 1;2" for n in range(4)] + [""]
        written(
            home / "store", f"_hour={hour}/city={city}/a.log{ending}", compress("\r\n".join(lines).encode() + b"\n")
        )
        expected += [(line, told_hour, told_city) for line in lines]
    report = imported("store", "old/logs", "--yes")
    found_rows = [(one["value"], one["_hour"], one["city"]) for one in rows_in(home / "home/lake/old/logs")]
    assert Counter(found_rows) == Counter(expected)
    assert report["rejected"] == 0
    assert DeltaTable(str(home / "home/lake/old/logs")).metadata().partition_columns == ["_hour", "city"]


def test_hundreds_of_tiny_files_are_committed_slice_by_slice_and_end_as_one_file_a_partition(home: Path) -> None:
    source, days, tiny = home / "store", ("2026-11-01", "2026-11-02", "2026-11-03"), 200
    for day in days:
        for n in range(tiny):
            written(source, f"day={day}/{n % 10}/{n}.csv", text_of([row(n)], "csv"))
    files = found(str(source))
    assert len(files) == len(days) * tiny
    slices = 4
    store = Import(
        str(home / "home/lake"), str(source), str(source), "old/tiny", -(-sum(f.bytes for f in files) // slices)
    )
    done: list[int] = []
    report = store.run(files, inferred(str(source), files), done.append)
    assert report.slices in (slices, slices + 1)
    assert sum(done) == report.bytes_before == sum(file.bytes for file in files)
    operations = Counter(entry["operation"] for entry in DeltaTable(store.uri).history())
    assert operations == {"CREATE TABLE": 1, "WRITE": report.slices, "OPTIMIZE": 1}
    assert (report.files_before, report.files_after) == (len(files), len(days))
    rows = Counter((one["id"], one["day"]) for one in rows_in(Path(store.uri)))
    assert rows == Counter((n, date.fromisoformat(day)) for day in days for n in range(tiny))


@pytest.mark.parametrize(
    "name", ["a.csv.snappy", "part-0.deflate", "a.jsonl.xz", "a.tar.gz", "a.parquet.gz", "b.orc.zst"]
)
def test_a_compression_that_is_not_undone_is_refused_with_what_to_do(home: Path, name: str) -> None:
    written(home / "store", "a.csv", b"id\n1\n")
    written(home / "store", name, b"whatever is in it")
    for options in ((), ("--format", "csv") if "parquet" not in name and "orc" not in name else ()):
        refused = called("store", "old/clicks", "--yes", *options).exception
        assert isinstance(refused, CompressionUnknown)
        assert name in str(refused)
        assert "Unpack it" in str(refused)
    assert not (home / "home").exists()


def test_what_is_not_compressed_as_it_is_called_is_in_quarantine_and_the_rest_is_imported(home: Path) -> None:
    written(home / "store", "a.csv.lz4", squeezed("lz4")(b"id\n1\n"))
    # Hadoop frames LZ4 in a way of its own: two lengths, then a block.
    block = pa.Codec("lz4_raw").compress(b"id\n2\n", asbytes=True)
    written(home / "store", "b.csv.lz4", (5).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block)
    for ending, compress in COMPRESSED.items():
        if ending:
            written(home / "store", f"c.csv{ending}", compress(b"id\n" + b"3\n" * 9)[:-2])
    report = imported("store", "old/clicks", "--yes")
    refused = [(one["path"], one["line"], "cannot be read" in one["reason"]) for one in quarantined(home)]
    assert refused == [(name, None, True) for name in ("b.csv.lz4", *(f"c.csv{e}" for e in sorted(COMPRESSED) if e))]
    assert 1 in {one["id"] for one in rows_in(home / "home/lake/old/clicks")}
    assert report["rejected"] == len(refused)


def test_columns_are_the_narrowest_that_hold_all_and_come_back_as_they_were_printed(home: Path) -> None:
    written(home / "store", "a.csv", b"id,score,at,day,what\n1,2,2026-11-01,2026-11-01,x\n")
    written(
        home / "store",
        "b.jsonl",
        b'{"id": 2, "score": 0.5, "at": "2026-11-02T01:30:00+02:00", "what": "5", "more": {"a": 1}}\n',
    )
    pq.write_table(pa.table({"id": pa.array([3], pa.int32()), "more": [{"b": [True]}]}), home / "store" / "c.parquet")
    times = ({"zone": "2026-11-01T09:00:00.123456Z", "none": "2026-11-01 09:00:00.5", "text": "2026-11-01T09:00"},
             {"zone": "2026-11-01T09:00:00+01:00", "none": None, "text": "soon"})  # fmt: skip
    written(home / "times", "a.jsonl", "\n".join(map(json.dumps, times)).encode())
    shown = called("store", "--show")
    assert json.loads(shown.stdout) == {
        "id": "long", "score": "double", "at": "timestamp", "day": "date", "what": "string",
        "more": "struct<a:long,b:array<boolean>>",
    }  # fmt: skip
    assert json.loads(called("times", "--show").stdout) == {"zone": "timestamp", "none": "timestamp", "text": "string"}
    agreed = called("store", "old/found", input="y\n")
    assert agreed.exit_code == 0, agreed.output
    assert "Import with these columns?" in agreed.output
    (home / "columns.json").write_text(shown.stdout)
    assert imported("store", "old/said", "--schema", "columns.json")["rows"] == 3
    rows = {one["id"]: one for one in rows_in(home / "home/lake/old/found")}
    assert rows == {one["id"]: one for one in rows_in(home / "home/lake/old/said")}
    assert rows[1]["at"] == datetime.fromisoformat("2026-11-01T00:00:00+00:00")
    assert rows[2]["at"] == datetime.fromisoformat("2026-11-01T23:30:00+00:00")
    assert [rows[n]["what"] for n in (1, 2)] == ["x", "5"]
    assert [rows[n]["more"] for n in (1, 2, 3)] == [None, {"a": 1, "b": None}, {"a": None, "b": [True]}]


@pytest.mark.parametrize("change", ["appended", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_imported_stops_the_import_before_its_slice_is_committed(
    home: Path, change: str
) -> None:
    source = home / "store"
    for name in ("a.csv", "b.csv", "c.csv"):
        written(source, name, text_of([row(n) for n in range(5)], "csv"))
    files = found(str(source))
    store = Import(str(home / "home/lake"), str(source), str(source), "old/moving", files[0].bytes)
    done: list[int] = []

    def meanwhile(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            if change == "appended":
                (source / "b.csv").write_bytes((source / "b.csv").read_bytes() + b"77,,,\n")
            elif change == "replaced":
                (source / "b.csv").write_bytes((source / "b.csv").read_bytes().replace(b"4,", b"8,"))
            else:
                (source / "b.csv").unlink()

    with pytest.raises(SourceChanged, match=r"b\.csv"):
        store.run(files, inferred(str(source), files), meanwhile)
    assert Counter(one["id"] for one in rows_in(Path(store.uri))) == Counter(range(5)), "the first slice, once"


def test_a_table_that_is_not_what_was_read_is_no_success(home: Path) -> None:
    written(home / "store", "a.csv", text_of([row(n) for n in range(5)], "csv"))
    imported("store", "old/clicks", "--yes")
    table = home / "home/lake/old/clicks"
    stranger = pa.Table.from_pylist([row(0)], DeltaTable(str(table)).to_pyarrow_table().schema)
    write_deltalake(str(table), stranger, mode="append")
    told = called("store", "old/clicks", "--yes").exception
    assert isinstance(told, ImportDiffers)
    assert "6 rows" in str(told)
    assert "5 rows" in str(told)


def test_a_slice_whose_bytes_were_changed_before_its_outcome_was_noted_is_no_success(home: Path) -> None:
    written(home / "store", "a.csv", text_of([row(n) for n in range(5)], "csv"))
    imported("store", "old/clicks", "--yes")
    # As a crash between the commit and its outcome leaves it.
    shutil.rmtree(home / "home/lake/import/outcome")
    (uri,) = DeltaTable(str(home / "home/lake/old/clicks")).file_uris()
    file = uri.removeprefix("file://")
    there = pq.read_table(file)
    pq.write_table(there.set_column(0, "id", pa.array([7] * there.num_rows)), file)
    assert isinstance(called("store", "old/clicks", "--yes").exception, ImportDiffers)


def test_a_store_on_s3_is_imported_like_one_on_disk_also_by_a_machine_of_one_core(
    home: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, client = f"old-{uuid4().hex[:12]}", moto.client("s3")
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    written(home, "one.parquet", b"")
    pq.write_table(pa.Table.from_pylist([row(n) for n in range(10, 15)]), home / "one.parquet")
    objects = {
        "clicks/day=2026-11-01/": b"",
        "clicks/day=2026-11-01/a b%.csv.gz": gzip.compress(text_of([row(n) for n in range(5)], "csv") + b"no record\n"),
        "clicks/day=2026-11-01/deep/b.jsonl": text_of([row(n) for n in range(5, 10)], "jsonl"),
        "clicks/day=2026-11-02/c.parquet": (home / "one.parquet").read_bytes(),
        "clicks/_SUCCESS": b"done",
    }
    for key, body in objects.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    environment = {"AWS_ENDPOINT_URL": moto.endpoint, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    arguments = ["import", f"s3a://{bucket}/clicks", "old/clicks", "--yes", "--json"]
    command = "import sys; from engagement_platform.cli import main; sys.exit(main())"
    # delta-rs's runtime has one thread then, as on one core.
    ran = subprocess.run(
        [sys.executable, "-c", command, *arguments], env={**os.environ, "TOKIO_WORKER_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout.splitlines()[-1])
    rows = rows_in(home / "home/lake/old/clicks")
    assert {one["id"]: (one["name"], one["score"], one["at"]) for one in rows} == {
        n: tuple(row(n).values())[1:] for n in range(15)
    }
    assert Counter(one["day"].isoformat() for one in rows) == {"2026-11-01": 10, "2026-11-02": 5}
    assert (report["rows"], report["rejected"], report["files_before"], report["files_after"]) == (15, 1, 3, 2)
    assert report["bytes_before"] == sum(
        len(body) for key, body in objects.items() if key.count(".") == 1 or "gz" in key
    )
    assert [one["value"] for one in quarantined(home)] == [b"no record"]
    assert imported(f"s3a://{bucket}/clicks", "old/clicks", "--yes")["slices_now"] == 0
    client.delete_object(Bucket=bucket, Key="clicks/day=2026-11-01/deep/b.jsonl")
    assert isinstance(called(f"s3a://{bucket}/clicks", "old/clicks", "--yes").exception, SourceChanged)
    for nowhere in (f"s3a://{bucket}/nothing", "s3a://no-such-bucket-of-ours/clicks"):
        assert isinstance(called(nowhere, "old/other", "--yes").exception, NothingToImport)


def test_what_was_in_a_bucket_and_is_gone_before_it_is_copied_stops_the_import(
    home: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, client = f"old-{uuid4().hex[:12]}", moto.client("s3")
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    for name, value in {
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("a.csv", "b.csv"):
        client.put_object(Bucket=bucket, Key=f"clicks/{name}", Body=text_of([row(1)], "csv"))
    root = f"s3a://{bucket}/clicks"
    files = found(root)
    columns = inferred(root, files)
    client.put_object(Bucket=bucket, Key="clicks/a.csv", Body=text_of([row(2), row(3)], "csv"))
    client.delete_object(Bucket=bucket, Key="clicks/b.csv")
    store = Import(str(home / "home/lake"), root, root, "old/moving")
    with pytest.raises(SourceChanged, match="2 files"):
        store.run(files, columns, lambda _: None)
    assert rows_in(Path(store.uri)) == []
    assert tables.noted(store.lake, tables.OUTCOME) == []
