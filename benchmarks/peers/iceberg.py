"""Iceberg tables whose merges write deletion vectors and new rows instead of whole files.

Runs in the environment of `iceberg.txt`:  python -m benchmarks.peers.iceberg
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.peers.protocol import Opened, serve
from benchmarks.peers.spark_tables import dumped, merge_sql, read_all, session

_MODES = ("delete", "update", "merge")
PROPERTIES: Mapping[str, str] = {
    # The third version has deletion vectors; the second lists positions in files of their own.
    "format-version": "3",
    **{f"write.{mode}.mode": "merge-on-read" for mode in _MODES},
}


class Iceberg:
    """A catalog in a folder."""

    def __init__(self, opened: Opened) -> None:
        self._spark = session(
            opened,
            {
                "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.peer.type": "hadoop",
                "spark.sql.catalog.peer.warehouse": str(opened.folder / "tables"),
            },
        )
        (jar,) = opened.jars
        self.versions: Mapping[str, str] = {
            "pyspark": pyspark.__version__,
            "iceberg": Path(jar).stem.rpartition("-")[2],
        }

    def table(self, name: str, rows: int) -> IcebergTable:  # noqa: ARG002
        """Files are as large as Iceberg makes them."""
        return IcebergTable(self._spark, f"peer.bench.{name}", f"bench.{name}")


class IcebergTable:
    """One table."""

    def __init__(self, spark: SparkSession, name: str, within: str) -> None:
        self._spark, self._name, self._within = spark, name, within

    def load(self, base: Path) -> None:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE {self._name} USING iceberg TBLPROPERTIES ({properties}) AS SELECT * FROM parquet.`{base}`"
        ).collect()

    def apply(self, batch: Path) -> None:
        columns = self._spark.table(self._name).columns
        self._spark.sql(merge_sql(self._name, f"(SELECT * FROM parquet.`{batch}`)", columns)).collect()

    def read(self) -> int:
        return read_all(self._spark.table(self._name))

    def compact(self) -> None:
        self._spark.sql(
            f"CALL peer.system.rewrite_data_files(table => '{self._within}', options => map('rewrite-all', 'true'))"
        ).collect()

    def dump(self, out: Path) -> None:
        dumped(self._spark.table(self._name), out)


if __name__ == "__main__":
    serve(Iceberg)
