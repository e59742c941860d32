"""Spark: which jars it gets, how a session is opened. No tables and no business rules here."""
