"""How long each way of reading a merge-on-read view takes: every permutation of a spec, each in a fresh Spark."""
