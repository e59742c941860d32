"""What a message becomes: one package per pipeline, each with rules (pure), a job (the pipe) and tables (contracts)."""
