"""The HTTP server that games send events to: what it acknowledges is on disk, free of personal data, and delivered."""
