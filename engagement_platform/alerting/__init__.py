"""What is worth telling, whom, and once: alerts with their states, the messages about them, and sending those.

Knows nothing of Dagster, Spark or tables: who finds something wrong says so in the words of `model`.
"""
