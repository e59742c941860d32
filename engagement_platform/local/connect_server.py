"""The driver of the embedded Spark Connect server: a session with the plugin, until its JVM ends. Run by spark-submit.

Not Spark's own main class: that isolates sessions, so that each has Python workers of its own, which import everything
anew, and leaves their daemon behind when it is closed (SPARK-54055).
"""

import json
import os
import sys

CONF = "EMBEDDED_SPARK_CONF"
"""Variable with the server's configuration, in which keys and passwords may be: only the owner of a process reads its
environment, and everybody its command line."""

if __name__ == "__main__":
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    for key, value in json.loads(os.environ.pop(CONF)).items():
        builder = builder.config(key, value)
    # In PySpark sessions are not isolated by default.
    builder.getOrCreate()
    sys.stdin.read()
