"""The figures of `statistics`, summed up by Spark from the log itself, for tables with too many files for one process.

Checkpoint and commits are read as frames; what comes to the driver are sums and the worst partitions, never files, so
that `spark.driver.maxResultSize` does not limit how large a table may be. DataFrames only: works over Connect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from engagement_platform.lake.log import spark_type
from engagement_platform.layout.files import CODEC_IN_NAME, NULL_PARTITION, UNNAMED, Shape
from engagement_platform.layout.segment import Segment, sidecars
from engagement_platform.layout.statistics import BUCKETS, COLUMNS, Statistics, Totals
from engagement_platform.settings import HealthSettings

_ADD = (
    "path string, partitionValues map<string,string>, size long, stats string, "
    "deletionVector struct<storageType: string, pathOrInlineDv: string, offset: int, cardinality: long>"
)
_COMMIT = f"add struct<{_ADD}>, remove struct<{_ADD}>".replace("struct<path string", "struct<path: string")

_NO_VECTOR = "struct<storageType: string, pathOrInlineDv: string, offset: int, cardinality: long>"
_GLOB = re.compile(r"([\\{}\[\]*?])")
_WORST_BY = ("small_files", "mergeable_files", "bytes", "depth")


def summed_by_spark(
    spark: SparkSession, found: Segment, what: Shape, name: str, column: str | None, limits: HealthSettings
) -> tuple[Statistics, list[str]]:
    """Statistics of a table, and a few paths of files whose names tell no codec.

    In:  found: the log's parts. column: the clustering column, or None.
    Out: all totals; partitions: all when there are at most `limits.worst_partitions`, else those with most small
         files, mergeable files, bytes and overlap.
    """
    files = _files(_live(spark, found), what, column).persist()
    try:
        partitions = _by_partition(files, limits, clustered=column is not None).persist()
        try:
            totals = _totals(files, partitions, limits.small_file_bytes)
            worst = _worst(partitions, totals.partitions, limits.worst_partitions)
        finally:
            partitions.unpersist()
        unnamed = files.where(F.col("codec") == UNNAMED).select("path").limit(limits.footer_samples).collect()
    finally:
        files.unpersist()
    clustering = (column,) if column else ()
    statistics = Statistics(name, found.uri, what.version, what.partitioned_by, clustering, totals, worst)
    return statistics, [row["path"] for row in unnamed]


def _live(spark: SparkSession, found: Segment) -> DataFrame:
    """The adds that are live at the segment's version: the newest action of each (path, deletion vector) decides.

    Out: the fields of an add that are looked at, stats_parsed where a checkpoint has that.
    """
    frames = [_commits(spark, found)] if found.after_checkpoint else []
    names = [*found.checkpoint_files, *sidecars(found)]
    parquet = [_place(found, name) for name in names if name.endswith(".parquet")]
    json = [_place(found, name) for name in names if name.endswith(".json")]
    assert found.checkpoint is not None or not names
    if parquet:
        frames.append(_actions(spark.read.parquet(*parquet), "add", F.lit(found.checkpoint), alive=True))
    if json:
        frames.append(_actions(spark.read.schema(_COMMIT).json(json), "add", F.lit(found.checkpoint), alive=True))
    actions = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    rest = [column for column in actions.columns if column not in ("path", "vector", "version")]
    newest = actions.groupBy("path", "vector").agg(F.max_by(F.struct(*rest), "version").alias("newest"))
    return newest.where("newest.alive").select("path", "newest.*")


def _commits(spark: SparkSession, found: Segment) -> DataFrame:
    places = [_place(found, f"{version:020}.json") for version in found.after_checkpoint]
    lines = spark.read.schema(_COMMIT).json(places).select("*", F.col("_metadata.file_name").alias("file"))
    version = F.substring("file", 1, 20).cast("long")
    return _actions(lines, "add", version, alive=True).unionByName(_actions(lines, "remove", version, alive=False))


def _actions(lines: DataFrame, kind: str, version: Column, *, alive: bool) -> DataFrame:
    """One kind of action, its fields as columns; fields that the file lacks are null."""
    struct = lines.schema[kind].dataType if kind in lines.columns else StructType()
    there = struct.names if isinstance(struct, StructType) else []
    missing = {"stats": F.lit(None).cast("string"), "deletionVector": F.lit(None).cast(_NO_VECTOR)}
    vector = F.col(f"{kind}.deletionVector") if "deletionVector" in there else F.lit(None).cast(_NO_VECTOR)
    fields = [F.col(f"{kind}.{name}").alias(name) for name in ("path", "partitionValues", "size")]
    fields.append((F.col(f"{kind}.stats") if "stats" in there else missing["stats"]).alias("stats"))
    if "stats_parsed" in there:
        fields.append(F.col(f"{kind}.stats_parsed").alias("stats_parsed"))
    unique = F.concat_ws("@", vector["storageType"], vector["pathOrInlineDv"], vector["offset"].cast("string"))
    hidden = F.coalesce(vector["cardinality"], F.lit(0)).alias("deleted")
    some = lines.where(F.col(kind).isNotNull())
    return some.select(*fields, hidden, unique.alias("vector"), version.alias("version"), F.lit(alive).alias("alive"))


def _place(found: Segment, name: str) -> str:
    """Where a file of the log is, as Spark wants it: Hadoop's scheme, and no globs."""
    place = found.place(name)
    return _GLOB.sub(r"\\\1", f"s3a://{place[5:]}" if place.startswith("s3://") else place)


def _files(live: DataFrame, what: Shape, column: str | None) -> DataFrame:
    """One row per file: path, partition, bytes, rows, deleted, codec, low, high, known, days."""
    bounds = [("rows", "numRecords", "long")]
    if column is not None:
        kind, stored = spark_type(what.kinds[column]), what.leaves[column]
        bounds += [("low", f"minValues.{stored}", kind), ("high", f"maxValues.{stored}", kind)]
        bounds += [("nulls", f"nullCount.{stored}", "long")]
    told = live.withColumn("told", F.from_json("stats", _ddl([(path, kind) for _, path, kind in bounds])))
    said = [_said(told, path, kind).alias(name) for name, path, kind in bounds]
    physical = [what.leaves.get(name, name) for name in what.partitioned_by]
    values = [F.coalesce(F.nullif(F.col("partitionValues")[key], F.lit("")), F.lit(NULL_PARTITION)) for key in physical]
    named = [F.concat(F.lit(f"{name}="), value) for name, value in zip(what.partitioned_by, values, strict=True)]
    # Java spells named groups in another way.
    codec = F.regexp_extract("path", CODEC_IN_NAME.replace("?P<codec>", ""), 1)
    rows = told.select(
        "path",
        F.concat_ws("/", *named).alias("partition"),
        F.col("size").alias("bytes"),
        "deleted",
        F.when(codec == "", UNNAMED).otherwise(codec).alias("codec"),
        *said,
    )
    if column is None:
        nothing = F.lit(None).cast("long")
        return rows.select("*", nothing.alias("low"), nothing.alias("high"), F.lit(False).alias("known"), _days("long"))
    known = (F.col("low").isNotNull() & F.col("high").isNotNull()) | F.coalesce(
        F.col("nulls") == F.col("rows"), F.lit(False)
    )
    return rows.select("*", known.alias("known"), _days(kind)).drop("nulls")


def _said(told: DataFrame, path: str, kind: str) -> Column:
    """A statistic of a file: from the JSON of its action, or from the checkpoint's columns where it has those."""
    json = F.col("told." + ".".join(f"`{part}`" for part in path.split(".")))
    inside = told.schema["stats_parsed"].dataType if "stats_parsed" in told.columns else None
    for part in path.split("."):
        if not isinstance(inside, StructType) or part not in inside.names:
            return json
        inside = inside[part].dataType
    parsed = F.col("stats_parsed." + ".".join(f"`{part}`" for part in path.split(".")))
    return F.coalesce(json, parsed.cast(kind))


def _ddl(paths: Sequence[tuple[str, str]]) -> str:
    """A struct type with a field at each of these dotted paths."""
    heads: dict[str, list[tuple[str, str]]] = {}
    for path, kind in paths:
        head, _, rest = path.partition(".")
        heads.setdefault(head, []).append((rest, kind))
    fields = (f"`{head}`: {_ddl(inside) if inside[0][0] else inside[0][1]}" for head, inside in heads.items())
    return f"struct<{', '.join(fields)}>"


def _days(kind: str) -> Column:
    if kind == "date":
        apart = F.datediff("high", "low").cast("double")
    elif kind.startswith("timestamp"):
        ends = [F.unix_micros(F.col(end).cast("timestamp")) for end in ("high", "low")]
        apart = (ends[0] - ends[1]).cast("double") / F.lit(86_400e6)
    else:
        apart = F.lit(None).cast("double")
    return apart.alias("days")


def _by_partition(files: DataFrame, limits: HealthSettings, *, clustered: bool) -> DataFrame:
    """The columns of `Statistics.partitions`, one row per partition."""
    small = F.col("bytes") < limits.small_file_bytes
    mergeable = F.col("bytes") < limits.target_file_bytes
    summed = files.groupBy("partition").agg(
        F.count("*").alias("files"),
        F.sum("bytes").alias("bytes"),
        F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
        F.count_if(small).alias("small_files"),
        F.coalesce(F.sum(F.when(small, F.col("bytes"))), F.lit(0)).alias("small_bytes"),
        F.count_if(mergeable).alias("mergeable_files"),
        F.coalesce(F.sum(F.when(mergeable, F.col("bytes"))), F.lit(0)).alias("mergeable_bytes"),
        F.sum("deleted").alias("deleted_rows"),
        F.count_if(~F.col("known") if clustered else F.lit(False)).alias("unbounded_files"),
        F.concat_ws(",", F.sort_array(F.collect_set("codec"))).alias("codecs"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
        F.sum("days").alias("span_days"),
    )
    return summed.join(_overlap(files), "partition", "left").select(*COLUMNS)


def _overlap(files: DataFrame) -> DataFrame:
    """partition, depth, mean_depth, as `statistics.overlap` says them."""
    ranges = files.where(F.col("low") <= F.col("high"))
    end = F.when(F.col("low") == F.col("high"), 2).otherwise(0)
    steps = F.array(
        F.struct(F.col("low").alias("value"), F.lit(1).alias("kind"), F.lit(1).alias("step")),
        F.struct(F.col("high").alias("value"), end.alias("kind"), F.lit(-1).alias("step")),
    )
    events = ranges.select("partition", F.explode(steps).alias("event")).select("partition", "event.*")
    before = Window.partitionBy("partition").orderBy("value", "kind").rowsBetween(Window.unboundedPreceding, 0)
    starts = events.withColumn("open", F.sum("step").over(before)).where("kind = 1")
    at_value = starts.groupBy("partition", "value").agg(F.max("open").alias("open"), F.count("*").alias("begun"))
    return at_value.groupBy("partition").agg(
        F.max("open").alias("depth"),
        (F.sum(F.col("open") * F.col("begun")).cast("double") / F.sum("begun")).alias("mean_depth"),
    )


def _totals(files: DataFrame, partitions: DataFrame, small_file_bytes: int) -> Totals:
    small = F.col("bytes") < small_file_bytes
    ends = [*BUCKETS[1:], None]
    within = [
        (F.col("bytes") >= low) & (F.lit(True) if high is None else F.col("bytes") < high)
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    middle = F.expr("percentile_disc(0.5) within group (order by bytes)")
    row = files.agg(
        F.count("*").alias("files"),
        F.sum("bytes").alias("bytes"),
        F.sum("rows").alias("rows"),
        F.count_if(small).alias("small_files"),
        F.sum(F.when(small, F.col("bytes"))).alias("small_bytes"),
        F.sum("deleted").alias("deleted_rows"),
        F.count_if(F.col("rows").isNull()).alias("files_without_rows"),
        middle.alias("median"),
        F.array(*(F.count_if(inside) for inside in within)).alias("histogram"),
    ).collect()[0]
    parts = partitions.agg(
        F.count("*").alias("count"), middle.alias("median"), F.sum("unbounded_files").alias("unbounded")
    ).collect()[0]
    codecs = {str(r["codec"]): int(r["count"]) for r in files.groupBy("codec").count().orderBy("codec").collect()}
    return Totals(
        files=int(row["files"]),
        bytes=int(row["bytes"] or 0),
        rows=int(row["rows"] or 0),
        partitions=int(parts["count"]),
        small_files=int(row["small_files"]),
        small_bytes=int(row["small_bytes"] or 0),
        deleted_rows=int(row["deleted_rows"] or 0),
        files_without_rows=int(row["files_without_rows"]),
        files_without_bounds=int(parts["unbounded"] or 0),
        median_file_bytes=int(row["median"] or 0),
        median_partition_bytes=int(parts["median"] or 0),
        codecs=codecs,
        histogram=tuple(int(count) for count in row["histogram"]),
    )


def _worst(partitions: DataFrame, count: int, most: int) -> pa.Table:
    """At most so many partitions, ordered by name; the worst by each of several figures when there are more."""
    if count <= most:
        return partitions.toArrow().sort_by("partition")
    each = max(1, most // len(_WORST_BY))
    tops = [partitions.orderBy(F.desc_nulls_last(by), "partition").limit(each) for by in _WORST_BY]
    return reduce(DataFrame.union, tops).dropDuplicates(["partition"]).toArrow().sort_by("partition")
