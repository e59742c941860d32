"""Alerts with their states, the messages about them, and sending those. Knows nothing of Dagster, Spark or tables."""
