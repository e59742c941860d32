"""Takes personal data out of an event: what may be kept in the open, and the values that were in it, by path.

Pure functions. What is personal data is `declared`, what looks like it is `detection`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Literal, NamedTuple, cast

from engagement_platform.pii.declared import Node, pointer_to
from engagement_platform.pii.detection import Kind, looks_like, number_looks_like
from engagement_platform.pii.encodings import bare, decoded
from engagement_platform.pii.names import Rule, rules

Policy = Literal["drop", "hash", "reject"]
"""What becomes of a field that looks like personal data: left out, replaced by its keyed hash, or event refused."""

_Path = tuple[str, ...]
LONGEST_NAME = 64
"""Characters of the names of which it is kept what they say; of longer ones a sender could fill the memory."""
LEAST_COPY, LEAST_COPY_OF_DIGITS = 4, 6
"""Characters, or digits of a number. Shorter declared values are not looked for in other fields: a player called Al, or
a latitude of 37.3, would lose half of them.
"""
FEW = 16
"""So many declared values are looked for one after the other, which takes less than `_Automaton` does."""


class PiiValue(NamedTuple):
    """One declared value as it stood in the event."""

    declared: str
    """The declared pointer; holds nothing of the event's own."""
    path: str
    """The pointer to where it stood. Keys of an object that `*` stands for are in it, and may be personal data."""
    value: object


@dataclass(frozen=True)
class Finding:
    """A field that nobody declared and that looks like personal data."""

    kind: Kind
    steps: _Path
    kept: bool = False
    """In a field that cannot be left out, so that the event is refused under every policy."""

    @property
    def path(self) -> str:
        """For the sender; may itself be personal data, so it is neither stored in the open nor logged."""
        # Made when it is asked for: the names above a list come again in each finding in it.
        return pointer_to(self.steps)


@dataclass(frozen=True)
class Redacted:
    """An event and its personal data, apart."""

    clean: dict[str, object]
    values: tuple[PiiValue, ...]
    findings: tuple[Finding, ...]

    def refused_by(self, unknown: Policy) -> Finding | None:
        """The finding for which the whole event is refused, if any."""
        return next((found for found in self.findings if found.kept or unknown == "reject"), None)


def redact(event: Mapping[str, object], rules: Node, unknown: Policy, digest: Callable[[str], str]) -> Redacted:
    """Take the declared fields out, and treat the others that look like personal data by policy.

    event: JSON values; not changed. digest: the keyed hash of the policy `hash`.
    No declared value is left in `clean`: texts that hold one again (4 characters or more, 6 digits of a number, in any
    case and Unicode form, decoded once) are findings, and so are keys and numbers equal to one. Fields declared safe
    are not looked at; of event_ts only the fraction is.
    With the policy `reject` what is found stands in `clean` still: ask `refused_by` first.
    """
    walk = _Walk(unknown, digest)
    clean = walk.through_object(event, (rules,))
    needles = frozenset(_needles(walk.values))
    if len(needles) > FEW or _somewhere(clean, needles):
        clean = _Copies(unknown, digest, walk.findings, needles=needles).through_object(clean, (rules,))
    return Redacted(clean, tuple(walk.values), tuple(walk.findings))


_GONE = object()
_FRACTION = re.compile(r"[.,](\d+)")
_NUMBER = re.compile(r"[+-]?\d*\.?\d*")
_DIGEST = re.compile(r"hmac:[0-9a-f]{32}")
_Nodes = tuple[Node, ...]


def _read_anew(name: str) -> tuple[Rule, Rule, Kind | None]:
    return *rules(name), looks_like(name)


_known = lru_cache(maxsize=10_000)(_read_anew)


def _read(name: str) -> tuple[Rule, Rule, Kind | None]:
    """All that is to know of the name of a field: its `rules`, and what it looks like itself."""
    return _known(name) if len(name) <= LONGEST_NAME else _read_anew(name)


@dataclass
class _Walk:
    """One pass over an event, which makes the event anew without what it takes out."""

    unknown: Policy
    digest: Callable[[str], str]
    findings: list[Finding] = field(default_factory=list)
    values: list[PiiValue] = field(default_factory=list)

    def through(
        self, value: object, nodes: _Nodes, path: _Path, rule: Rule, *, above: bool, safe: bool = False
    ) -> object:
        """rule: that of the field; elements of a list go by the list's. above: whether its name, or one above it, says
        phone. Both are carried down, so that a name is read once, however much is below it.
        """
        for node in nodes:
            if node.declared is not None:
                self.values.append(PiiValue(node.declared, pointer_to(path), value))
                return _GONE
            safe = safe or node.safe
        if isinstance(value, Mapping):
            return self.through_object(value, nodes, path, above=above, safe=safe)
        if isinstance(value, list):
            made = []
            for place, one in zip(map(str, count()), value, strict=False):
                below = _below(nodes, place) if nodes else ()
                clean = self.through(one, below, (*path, place), rule, above=above, safe=safe)
                # Null in place of one that was named by its place, or the next would stand there.
                if clean is not _GONE:
                    made.append(clean)
                elif any(place in node.children for node in nodes):
                    made.append(None)
            return made
        if safe:
            return value
        kept = any(node.kept for node in nodes)
        seen = value
        if path == ("event_ts",) and isinstance(value, str):
            # Of a time only the fraction is of any length; with the offset behind it it would pass for a phone number.
            seen = "".join(_FRACTION.findall(value))
        kind = self.look(seen, rule, kept=kept)
        return value if kind is None else self.treat(kind, value, path, kept=kept)

    def through_object(
        self,
        value: Mapping[str, object],
        nodes: _Nodes,
        path: _Path = (),
        *,
        above: bool = False,
        safe: bool = False,
    ) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, each in value.items():
            below = _below(nodes, key)
            own, below_phone, named = _read(key)
            rule = below_phone if above else own
            # Most of an event is values that nobody declared and that are fine; they need no call of their own.
            if below or isinstance(each, Mapping | list) or not (safe or self.look(each, rule, kept=False) is None):
                clean = self.through(each, below, (*path, key), rule, above=above or own is Rule.PHONE, safe=safe)
                if clean is _GONE:
                    continue
            else:
                clean = each
            # A name that only `*` stands for is the event's own.
            known = safe or (below and any(key in node.children for node in nodes)) or self.is_digest(key)
            kind = None if known else self.look_at_key(key, named, above=above)
            name = key if kind is None else self.treat(kind, key, (*path, key), kept=False)
            if name is not _GONE:
                made[cast(str, name)] = clean
        return made

    def look(self, value: object, rule: Rule, *, kept: bool) -> Kind | None:  # noqa: ARG002
        """What a value that is neither object nor list looks like."""
        if isinstance(value, str):
            return None if self.is_digest(value) else looks_like(value, rule)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return number_looks_like(value, rule)

    def look_at_key(self, key: str, named: Kind | None, *, above: bool) -> Kind | None:
        """What the name of a field looks like. named: that anywhere. above: it is below a field that says phone."""
        return named or (looks_like(key, Rule.BELOW_PHONE) if above else None)

    def is_digest(self, text: str) -> bool:
        """Whether it was hashed in this pass or a former one: hashed again, equal values would not stay equal."""
        return self.unknown == "hash" and _DIGEST.fullmatch(text) is not None

    def treat(self, kind: Kind, value: object, path: _Path, *, kept: bool) -> object:
        self.findings.append(Finding(kind, path, kept))
        if kept or self.unknown == "reject":
            return value
        return _GONE if self.unknown == "drop" else self.digest(str(value))


@dataclass
class _Copies(_Walk):
    """A second pass, for events in which a declared value stands somewhere else once more."""

    needles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._within = _Automaton(self.needles).within if len(self.needles) > FEW else self._one_by_one

    def _one_by_one(self, text: str) -> bool:
        return any(needle in text for needle in self.needles)

    def look(self, value: object, rule: Rule, *, kept: bool) -> Kind | None:  # noqa: ARG002
        if isinstance(value, str):
            if self.is_digest(value):
                return None
            forms = _forms(value)
            # In ids only the whole value counts: four letters occur in a random one by chance.
            found = not self.needles.isdisjoint(forms) if kept else any(map(self._within, forms))
        else:
            found = isinstance(value, int | float) and str(value) in self.needles
        return Kind.COPY if found else None

    def look_at_key(self, key: str, named: Kind | None, *, above: bool) -> Kind | None:  # noqa: ARG002
        return None if self.needles.isdisjoint((key.casefold(), _bare(key))) else Kind.COPY


def _below(nodes: _Nodes, key: str) -> _Nodes:
    """The nodes that a step leads to."""
    if not nodes:
        return ()
    return nodes[0].below(key) if len(nodes) == 1 else tuple(child for node in nodes for child in node.below(key))


def _bare(text: str) -> str:
    return bare(text).casefold()


def _forms(text: str) -> Iterator[str]:
    """In which a declared value is looked for in a text."""
    for form in (text, *decoded(text)):
        yield form.casefold()
        if not form.isascii():
            yield _bare(form)


def _needles(values: list[PiiValue]) -> Iterator[str]:
    for leaf in (leaf for value in values for leaf in _leaves(value.value)):
        text = leaf.strip().casefold()
        is_number = _NUMBER.fullmatch(text) is not None
        if sum(map(str.isdigit, text)) >= LEAST_COPY_OF_DIGITS if is_number else len(text) >= LEAST_COPY:
            # Of some scripts, and of a name in ornaments, too little is left without the marks.
            yield plain if len(plain := _bare(leaf.strip())) >= LEAST_COPY else text


def _leaves(value: object, *, names: bool = False) -> Iterator[str]:
    """Values that are neither object nor list, as texts. names: of fields as well."""
    if isinstance(value, Mapping | list):
        if names and isinstance(value, Mapping):
            yield from value
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each, names=names)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


class _Automaton:
    """Looks for many texts at once, in time that goes with the length of what is searched, however many they are.

    After Aho and Corasick, Efficient string matching, 1975. A state is the beginning of a text; 0 the empty one.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._found = [False]
        for text in texts:
            state = 0
            for character in text:
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self._found.append(False)
                state = self._next[state][character]
            self._found[state] = True
        # By state the longest proper suffix of it that is a beginning, too; shorter states come first.
        self._shorter = [0] * len(self._next)
        states = list(self._next[0].values())
        for state in states:
            for character, longer in self._next[state].items():
                self._shorter[longer] = self._after(self._shorter[state], character)
                self._found[longer] |= self._found[self._shorter[longer]]
                states.append(longer)

    def _after(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def within(self, text: str) -> bool:
        """Whether one of the texts is in this one."""
        state = 0
        for character in text:
            state = self._after(state, character)
            if self._found[state]:
                return True
        return False


def _somewhere(clean: Mapping[str, object], needles: Iterable[str]) -> bool:
    """Whether a needle is in the event at all; one pass of the interpreter's own code, before a second walk."""
    if not needles:
        return False
    text = json.dumps(clean, ensure_ascii=False)
    if "\\" in text:
        # The n of an escaped line feed would be the first digit of what stands in base64 behind it.
        # Two line feeds: what stands in lines of base64 is one text.
        text = "\n\n".join(_leaves(clean, names=True))
    return any(needle in form for form in _forms(text) for needle in needles)
