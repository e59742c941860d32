"""The process from which the embedded Spark server forks its Python workers: it has imported most of what they need.

The server starts one for each kind of worker, as `spark.python.daemon.module`. Spark's own imports nothing before it
forks, for fear of threads; those that numpy's OpenBLAS, pyarrow and its jemalloc start have handlers for that.
"""

import gc

import pandas  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import engagement_platform.pipelines.mutations.rules
import engagement_platform.sources.s3_sqs  # noqa: F401

if __name__ == "__main__":
    # Collections in a worker would write to pages that it shares with others.
    gc.freeze()
    manager()
