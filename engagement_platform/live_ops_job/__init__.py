"""The job that counts what was added to the tables of games, judges it and tells; what it calls is in `live_ops`.

No Spark: it reads tables as a consumer without a JVM does, and keeps what it counted in the stores' database.
"""
