"""Requests to convert, delete, rename and update: accepted, announced, and moved into the Data Table."""
