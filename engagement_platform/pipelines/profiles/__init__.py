"""Partial updates: a changeset that is appended to, a base, and the view that is both. Declared for any entity."""
