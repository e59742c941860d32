"""Programs for those who work on the platform; nothing that is installed with it."""
