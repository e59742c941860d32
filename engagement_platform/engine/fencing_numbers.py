"""Fencing numbers of leases: they only grow, and never repeat, whatever the stores have lost."""

from __future__ import annotations

import secrets

# Leaves 2,147,483,648 acquisitions of one lease in 63 bits, one a second for 68 years; two draws agree by chance once
# in 4 billion restores.
_DRAWN_BITS = 32


def turn_of(number: int) -> int:
    """Which turn a fencing number is of, from 1."""
    return number >> _DRAWN_BITS


def next_number(last: int) -> int:
    """A fencing number that is greater than the last one and was never given out, whatever the stores have lost.

    Counted in its upper half and drawn in its lower: stores from a backup, or new ones, count from where they are,
    and a holder of before must not find its own number there again.
    """
    return (turn_of(last) + 1 << _DRAWN_BITS) | secrets.randbits(_DRAWN_BITS)
