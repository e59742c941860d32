"""Page views from Kafka, sessions of them, and days of those: streams that read on from each other's tables."""
