"""Erases somebody from the tables of engagements and entities, under their leases, exactly once."""
