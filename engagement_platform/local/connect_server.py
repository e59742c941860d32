"""The driver of the embedded Spark Connect server: a session with the plugin, until its JVM ends. Run by spark-submit.

Not Spark's own main class: that isolates sessions, so that each has Python workers of its own, which import everything
anew, and leaves their daemon behind when it is closed (SPARK-54055).
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    # In PySpark sessions are not isolated by default.
    SparkSession.builder.getOrCreate()
    sys.stdin.read()
