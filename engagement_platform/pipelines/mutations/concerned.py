"""Which edges and patches of an organization can matter to some of its rows: it may have a million, and a batch a few.

Pure functions over the schema STATE, by whole columns. What edges come to is decided in `rules`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engagement_platform.pipelines.state import one_chunk

Codes = npt.NDArray[np.int64]


def of_rows(state: pa.Table, *more: pa.Array) -> pa.Table:
    """The state without edges and patches that concern none of its rows, nor one of these person ids.

    Patches go by engagement_id; without `more` persons all that are of no row go.
    """
    row = one_chunk(state.column("row"))
    state = of_persons(state, pa.concat_arrays([pc.struct_field(row, "source_person_id"), *more]))
    if more:
        return state
    patched = pc.struct_field(state.column("patch"), "engagement_id")
    standing = pc.is_in(patched, value_set=pc.struct_field(row, "engagement_id").drop_null())
    return state.filter(pc.or_(pc.is_null(patched), standing))


def in_parts(state: pa.Table, size: int) -> Iterator[pa.Table]:
    """The state in parts of about so many rows. All of an engagement is in one of them, and each edge in every one.

    What a row comes to follows from edges and its own engagement, so the parts come to what the whole comes to.
    """
    parts = -(-(state.num_rows - state.column("row").null_count) // size)
    if parts < 2:
        yield state
        return
    ids = (pc.struct_field(one_chunk(state.column(kind)), "engagement_id") for kind in ("row", "patch"))
    codes = pc.fill_null(pc.coalesce(*ids).dictionary_encode().indices, -1).to_numpy()
    for number in range(parts):
        yield state.filter(pa.array((codes < 0) | (codes % parts == number)))


def of_edges_since(state: pa.Table, since: int) -> pa.Table:
    """The state without edges that share no person, directly or by others, with those of a sequence from `since` on."""
    edge = one_chunk(state.column("edge"))
    new = edge.filter(pc.greater_equal(pc.struct_field(edge, "sequence"), since))
    if len(new) == len(edge) - edge.null_count:
        return state
    return of_persons(state, pa.concat_arrays([pc.struct_field(new, "from_id"), pc.struct_field(new, "to_id")]))


def of_persons(state: pa.Table, persons: pa.Array) -> pa.Table:
    """The state without edges that no path of edges, in whichever direction, connects with one of these persons.

    An edge that names no person stays. Cost: a dictionary of the ids, and `components`.
    """
    edge = one_chunk(state.column("edge"))
    begin = pc.struct_field(edge, "from_id")
    ends = [begin, pc.coalesce(pc.struct_field(edge, "to_id"), begin)]
    ids = pa.concat_arrays(ends).dictionary_encode()
    codes = pc.fill_null(ids.indices, -1).to_numpy().astype(np.int64)
    first, second = codes[: len(edge)], codes[len(edge) :]
    named = first >= 0
    roots = components(first[named], second[named], len(ids.dictionary))
    wanted = np.zeros(len(roots), bool)
    wanted[roots[pc.is_in(ids.dictionary, value_set=persons.drop_null()).to_numpy(zero_copy_only=False)]] = True
    kept = ~named
    kept[named] = wanted[roots[first[named]]]
    return state.filter(pa.array(kept))


def components(first: Codes, second: Codes, count: int) -> Codes:
    """The least of each component, for each of `count` ids of which first[i] and second[i] are linked.

    Every tree takes the least root beside it, then all point to their roots: rounds grow with the logarithm of the
    longest path, and not with the path, which a sender may make as long as it likes.
    """
    roots = np.arange(count)
    while True:
        before = roots.copy()
        least = np.minimum(before[first], before[second])
        np.minimum.at(roots, before[first], least)
        np.minimum.at(roots, before[second], least)
        while not np.array_equal(roots, roots[roots]):
            roots = roots[roots]
        if np.array_equal(roots, before):
            return roots
