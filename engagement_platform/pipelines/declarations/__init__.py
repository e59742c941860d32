"""Tables that people declare in `defs.yaml` files: what may stand there, and who would own what."""
