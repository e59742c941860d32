"""Messages from Kafka to tables: engagements into quarantine, mapping, data and notification; requests into theirs."""
