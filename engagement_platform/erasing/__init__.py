"""Erases a subject from every table and place, under the leases of the tables, exactly once."""
