"""Where messages come from and how strictly they are read; what becomes of them is `pipelines`."""
