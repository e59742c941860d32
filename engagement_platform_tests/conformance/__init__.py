"""`make conformance`: runs that are disturbed at every commit, and planted bugs that tests have to catch."""
