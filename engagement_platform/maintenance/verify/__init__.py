"""Recomputes what the tables should hold, from messages and from the logs of requests, and compares. Changes nothing.

Comparing with the topic is `messages`; identities, contents and names are `identity`, by the rules that `recomputed`
runs; when a lake that is written to meanwhile can be compared at all is `snapshot`.
"""
