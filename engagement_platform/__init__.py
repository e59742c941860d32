"""Events that change after they were written: ingested exactly once, mutated in bulk, read incrementally."""
