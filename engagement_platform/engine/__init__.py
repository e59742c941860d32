"""Exactly once across several tables: manifests, stores, leases and the job that runs one batch at a time.

Knows nothing of Delta, Kafka or Dagster: sources and processes come in through the protocols in `model`.
"""
