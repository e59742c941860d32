"""From mutation requests to the identity, content and name that every engagement has now."""
