"""Game events: thirty declared types, from objects in S3 to one table each, exactly once."""
