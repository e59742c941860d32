"""Personal data: which fields are, taking them out of events, keeping them encrypted apart, erasing a subject."""
