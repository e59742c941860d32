"""What senders may send: JSON as text, so that it may be what no encoder writes, and bytes around it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import strategies as st

_TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(min_codepoint=0x0, max_codepoint=0x1FFFF), max_size=12),
    st.sampled_from(
        (
            "bob@example.org", "4111 1111 1111 1111", "41111111111111110127123", "+49 30 1234567", "10.1.2.3", "::1",
            "__HIVE_DEFAULT_PARTITION__", "2026-11-22T10:00:00Z", "0001-01-01T00:00:00+23:59", "\x00", "\ufeff", " ",
            "9999-12-31T23:59:59-23:59", "2026-02-30", "1e400", "NaN", "\u2028", "x" * 300, "é", "e\u0301", "%40",
            "-0.00", "../../etc", "Ym9iQGV4YW1wbGUub3Jn", "=1+1", "<b>", "null", "true", "99999999999999999999.99",
        )
    ),
)  # fmt: skip
_TOKENS = st.one_of(
    st.sampled_from(
        (
            "null", "true", "false", "0", "-0", "-0.0", "1e308", "1e309", "-1e400", "1e-400", "NaN", "Infinity",
            "-Infinity", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "4111111111111111",
            "1.7976931348623159e308", "01", "+1", "1.", ".5", "9" * 308, "9" * 309, "9" * 4300, "9" * 4301, "[]", "{}",
            '""', "", "tru", '"', "\\", r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', '"\t"', r'"\x"',
            '"\ud800"',
        )
    ),
    _TEXTS.map(json.dumps),
    st.integers().map(str),
    st.floats().map(json.dumps),
)  # fmt: skip
_KEYS = st.one_of(_TEXTS, st.sampled_from(("email", "phone", "events", "player_id", "note", "phones", "a"))).map(
    json.dumps
)


def object_text(pairs: Iterable[tuple[str, str]]) -> str:
    """An object of names and values that are JSON already."""
    return "{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    objects = st.lists(st.tuples(_KEYS, inner), max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
        # Two of the same name are as likely as in any short list.
        objects.map(object_text),
        st.builds(
            lambda deep, value: "[" * deep + value + "]" * deep,
            st.sampled_from((3, 17, 33, 101, 499, 501, 990, 5000)),
            inner,
        ),
    )


_VALUES = st.recursive(_TOKENS, _nested, max_leaves=6)


def json_texts() -> st.SearchStrategy[str]:
    """A value as JSON text, or nearly."""
    return _VALUES


def nearly(valid: Sequence[Mapping[str, object]]) -> st.SearchStrategy[str]:
    """One of these objects as text: fields changed, left out, doubled, and others beside them."""
    return st.one_of(list(map(_nearly, valid)))


def _nearly(base: Mapping[str, object]) -> st.SearchStrategy[str]:
    written = {json.dumps(name): json.dumps(value) for name, value in base.items()}
    names = st.sampled_from(sorted(written))

    def text(other: Mapping[str, str], out: set[str], added: Sequence[tuple[str, str]]) -> str:
        return object_text(
            (*((name, value) for name, value in {**written, **other}.items() if name not in out), *added)
        )

    return st.builds(
        text,
        st.dictionaries(names, _VALUES, max_size=2),
        st.one_of(st.just(frozenset[str]()), st.sets(names, max_size=1)),
        st.one_of(st.just(()), st.lists(st.tuples(st.one_of(_KEYS, names), _VALUES), max_size=2)),
    )


def encoded(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Texts as bytes; half surrogates make some of them no UTF-8."""
    return texts.map(lambda text: text.encode("utf-8", "surrogatepass"))


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The bytes with one changed, cut off at the end, or with more behind them."""

    def made(content: bytes, how: str, place: float, more: bytes) -> bytes:
        at = int(place * len(content))
        return content + more if how == "longer" else content[:at] + more + content[at + 1 :] if more else content[:at]

    places = st.floats(0, 1, exclude_max=True)
    return st.builds(made, whole, st.sampled_from(("longer", "changed")), places, st.binary(max_size=4))
