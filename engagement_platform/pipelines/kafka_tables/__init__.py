"""Declared topics, each into an append-only table of its own."""
