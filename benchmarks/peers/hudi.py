"""Hudi merge-on-read tables: a batch is appended to log files, which readers merge column by column.

Runs in the environment of `hudi.txt`:  python -m benchmarks.peers.hudi
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.peers.protocol import DELETE, KEY, OP, VERSION, Opened, serve
from benchmarks.peers.spark_tables import dumped, read_all, session
from benchmarks.peers.words import GONE, NO_DAY, NO_NUMBER, NO_TEXT

# Bytes of a row times rows, in files of about 128 MB; a bucket is a file. A bucket index looks nothing up.
_ROWS_OF_A_BUCKET = 350_000


class Hudi:
    """Tables in a folder."""

    def __init__(self, opened: Opened) -> None:
        self._folder = opened.folder / "tables"
        self._spark = session(
            opened,
            {
                "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
                "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
                "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
            },
        )
        (jar,) = opened.jars
        self.versions: Mapping[str, str] = {"pyspark": pyspark.__version__, "hudi": Path(jar).stem.rpartition("-")[2]}

    def table(self, name: str, rows: int) -> HudiTable:
        """Its buckets are as many as the rows want."""
        return HudiTable(self._spark, self._folder / name, name, max(2, -(-rows // _ROWS_OF_A_BUCKET)))


class HudiTable:
    """One table."""

    def __init__(self, spark: SparkSession, at: Path, name: str, buckets: int) -> None:
        self._spark, self._at, self._columns = spark, at, [""]
        self._options: Mapping[str, str] = {
            "hoodie.table.name": name,
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.datasource.write.recordkey.field": KEY,
            "hoodie.datasource.write.precombine.field": VERSION,
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.PartialUpdateAvroPayload",
            "hoodie.index.type": "BUCKET",
            "hoodie.index.bucket.engine": "SIMPLE",
            "hoodie.bucket.index.num.buckets": str(buckets),
            "hoodie.bulkinsert.shuffle.parallelism": "2",
            "hoodie.upsert.shuffle.parallelism": "2",
            # Compaction is asked for, as the product's move into the base is.
            "hoodie.compact.inline": "false",
        }

    def load(self, base: Path) -> None:
        rows = self._spark.read.parquet(str(base))
        self._columns = rows.columns
        self._write(rows.withColumn(GONE, F.lit(False)), "bulk_insert", "overwrite")

    def apply(self, batch: Path) -> None:
        said = self._spark.read.parquet(str(batch))
        gone = F.col(OP) == DELETE
        words = (
            F.when(gone, _no_word(of)).otherwise(F.col(name)).alias(name) if name not in (KEY, VERSION) else F.col(name)
            for name, of in said.select(*self._columns).dtypes
        )
        self._write(said.select(*words, gone.alias(GONE)), "upsert", "append")

    def read(self) -> int:
        return read_all(self._rows())

    def compact(self) -> None:
        # By itself it would wait for five batches, and do nothing after fewer.
        options = "hoodie.compact.inline.max.delta.commits=1"
        self._spark.sql(
            f"CALL run_compaction(op => 'scheduleAndExecute', path => '{self._at}', options => '{options}')"
        ).collect()

    def dump(self, out: Path) -> None:
        dumped(self._rows(), out)

    def _rows(self) -> DataFrame:
        rows = self._spark.read.format("hudi").load(str(self._at)).where(~F.col(GONE)).select(*self._columns)
        return rows.select(
            *(
                F.when(F.col(name) != _no_word(of), F.col(name)).alias(name) if name not in (KEY, VERSION) else name
                for name, of in rows.dtypes
            )
        )

    def _write(self, rows: DataFrame, operation: str, mode: str) -> None:
        options = {**self._options, "hoodie.datasource.write.operation": operation}
        rows.write.format("hudi").options(**options).mode(mode).save(str(self._at))


def _no_word(of: str) -> Column:
    """What stands for null in a column of this type."""
    return F.lit({"string": NO_TEXT, "bigint": NO_NUMBER, "date": NO_DAY}[of])


if __name__ == "__main__":
    serve(Hudi)
