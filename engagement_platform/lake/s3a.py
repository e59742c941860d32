"""What Spark is told of an object store, from the variables that boto3 and delta-rs read. Opening it is `session`.

Credentials are not among it: Hadoop's own chain finds AWS_ACCESS_KEY_ID or the machine's role by itself, in the driver
and in each executor, and so they are in no configuration that a UI or an event log shows.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEME = "s3a://"


def s3a_conf(lake: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Configuration of a Spark that is started here; empty for a lake that is not at s3a://.

    Reads AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (an S3 that is not Amazon's), and AWS_REGION or AWS_DEFAULT_REGION.
    """
    if not lake.startswith(SCHEME):
        return {}
    conf = {}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        conf["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Others than Amazon seldom have a name in the DNS for each bucket.
        conf["spark.hadoop.fs.s3a.path.style.access"] = "true"
        conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region:
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf
