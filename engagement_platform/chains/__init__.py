"""Streams that read on from each other's tables: page views from Kafka, sessions of them, and days of those."""
