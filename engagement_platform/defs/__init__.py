"""Dagster only: assets, checks, sensors and jobs around the packages that do the work. Nothing below imports this."""
