"""Which fields of which event type are personal data, which never are, and where an event says whom it is about.

Declarations only, as JSON pointers (RFC 6901) in which `*` stands for every element of a list and every key of an
object. Taking the fields out is `redaction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from engagement_platform.errors import PlatformError

EVERY_TYPE = "*"
"""Stands for all event types, declared and unknown."""

ENVELOPE = ("/event_id", "/event_type", "/event_ts", "/game_id")
"""Fields without which an event is none; they are never taken out, so personal data in them refuses the event."""

SHIPPED: Mapping[str, tuple[str, ...]] = {
    EVERY_TYPE: (
        "/email", "/phone", "/ip", "/ip_address", "/first_name", "/last_name", "/full_name", "/birth_date",
        "/address", "/player/email", "/player/phone", "/player/name", "/player/ip", "/player/birth_date",
        "/player/address", "/device/ip", "/device/advertising_id", "/device/serial", "/context/ip",
        "/location/latitude", "/location/longitude",
    ),
    "purchase": ("/payment/card_number", "/payment/card_holder", "/payment/account", "/billing"),
    "registration": ("/username", "/password", "/invited_by/email"),
    "login": ("/username", "/password"),
    "support_ticket": ("/message", "/contact"),
    "chat_message": ("/text", "/recipients/*/name"),
    "friend_invite": ("/recipients/*/email", "/recipients/*/phone", "/recipients/*/name"),
}  # fmt: skip
"""Personal data by default: fields that a games' SDK sends under these names."""


class PiiDeclarationRefused(PlatformError):
    """A declared pointer that is none, or that contradicts another declaration."""

    def __init__(self, event_type: str, pointer: str, why: str) -> None:
        super().__init__(
            f"The field {pointer!r} declared for events of type {event_type!r} cannot be used: {why}. Nothing was "
            "started. Write a JSON pointer such as /player/email or /devices/*/ip in pii.fields or pii.safe."
        )


@dataclass
class Node:
    """One step of the declared pointers of an event type."""

    children: dict[str, Node] = field(default_factory=dict)
    declared: str | None = None
    """The pointer of personal data that ends here."""
    safe: bool = False
    kept: bool = False

    def below(self, key: str) -> tuple[Node, ...]:
        """The nodes that a key, or an element of a list (any key will do), leads to."""
        exact, every = self.children.get(key), self.children.get("*")
        if exact is None:
            return () if every is None else (every,)
        return (exact,) if every is None or every is exact else (exact, every)


class Declarations:
    """All declarations: event type, or `*`, to pointers. Raises PiiDeclarationRefused for one that cannot be used.

    fields: personal data. safe: never looked at, such as a field of version numbers; a declared field below one is
    still personal data. subject: where an event says whom it is about.
    """

    def __init__(
        self,
        fields: Mapping[str, Iterable[str]],
        safe: Mapping[str, Iterable[str]] = MappingProxyType({}),
        subject: str = "/player_id",
    ) -> None:
        self.fields, self.safe, self.subject = fields, safe, subject
        self.subject_parts = parts(subject, EVERY_TYPE)
        self._rules = {event_type: self._tree(event_type) for event_type in {EVERY_TYPE, *fields, *safe}}

    def rules(self, event_type: str) -> Node:
        """The root of the pointers that apply to events of a type."""
        return self._rules.get(event_type, self._rules[EVERY_TYPE])

    def _tree(self, event_type: str) -> Node:
        root = Node()
        for pointer in (*ENVELOPE, self.subject):
            _reach(root, pointer, EVERY_TYPE).kept = True
        for name in dict.fromkeys((EVERY_TYPE, event_type)):
            for pointer in self.safe.get(name, ()):
                _reach(root, pointer, name).safe = True
            for pointer in self.fields.get(name, ()):
                node = _reach(root, pointer, name)
                if _keeps(node) or pointer == "/*":
                    raise PiiDeclarationRefused(name, pointer, "an event needs it, so it cannot be taken out")
                node.declared = pointer
        return root


def declarations(fields: Mapping[str, str], safe: Mapping[str, str], subject: str) -> Declarations:
    """What ships, and what settings add: event type to pointers with blanks or commas between them.

    Raises PiiDeclarationRefused.
    """
    more = {event_type: _listed(pointers) for event_type, pointers in fields.items()}
    united = {name: (*SHIPPED.get(name, ()), *more.get(name, ())) for name in {**SHIPPED, **more}}
    return Declarations(united, {name: _listed(pointers) for name, pointers in safe.items()}, subject)


def parts(pointer: str, event_type: str) -> tuple[str, ...]:
    """A pointer's steps. Raises PiiDeclarationRefused.

    >>> parts("/a~1b/*/c~0d", "*")
    ('a/b', '*', 'c~d')
    """
    if not pointer.startswith("/") or pointer == "/":
        raise PiiDeclarationRefused(event_type, pointer, "a pointer begins with / and names a field")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def pointer_to(path: Iterable[str]) -> str:
    """Steps as a pointer.

    >>> pointer_to(("a/b", "0", "c~d"))
    '/a~1b/0/c~0d'
    """
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def _listed(pointers: str) -> tuple[str, ...]:
    return tuple(pointers.replace(",", " ").split())


def _reach(root: Node, pointer: str, event_type: str) -> Node:
    node = root
    for step in parts(pointer, event_type):
        node = node.children.setdefault(step, Node())
    return node


def _keeps(node: Node) -> bool:
    return node.kept or any(map(_keeps, node.children.values()))
