"""Measurements of the platform. Each module is one benchmark: `make bench-<name>`."""

import os

# Homes and lakes that benchmarks make are refused by the platform where others can enter them.
os.umask(0o077)
