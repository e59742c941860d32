"""What batches of declared streams and entities share: decoded records, and the process that quarantines some."""
