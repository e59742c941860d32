"""A copy of the engagements that stand, in one DuckDB file, refreshed by what changed. It is a consumer like any other."""
