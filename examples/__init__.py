"""What users build on the platform, on its public functions alone."""
