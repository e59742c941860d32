"""Topics that somebody declares, each into an append-only table of its own."""
