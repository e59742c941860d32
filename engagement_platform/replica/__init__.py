"""A copy of the engagements that stand, in one DuckDB file, refreshed by what changed. A consumer like any other."""
