"""`make conformance`: bugs that are planted, which tests have to catch."""
