"""Takes groups of tables back to the end of an earlier batch, tells readers of it, and puts the jobs back too."""
