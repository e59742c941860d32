"""Engagements from Kafka into the Data Table, its changeset, names, notifications and quarantine."""
