"""Dagster components: tables of somebody's own, declared in a `defs.yaml` file."""
