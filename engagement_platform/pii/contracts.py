"""The tables of personal data, declared. All values in them are encrypted; filling them is `vault`."""

from __future__ import annotations

from engagement_platform.lake.contract import Column, Mode, Table

_GAME = Column("game", "string", "Whose API key sent the event.")
_REF = Column("subject_ref", "string", "Keyed hash of the subject's id.")
_SEALED = Column("sealed", "binary", "Nonce, ciphertext and tag (AES-256-GCM).")
_KEY_VERSION = Column("key_version", "long", "Version of the subject's data key.")
_DATE = Column("received_date", "date", "UTC day of received_ts.")
_TS = Column("received_ts", "timestamp", "When the server took the event, UTC.")
_SEGMENT = Column("segment", "long", "Segment of the server's spool that it came through.")

VAULT = Table(
    key=("pii", "vault"),
    description="Personal data of events, one encrypted row for each value, apart from the events.",
    mode=Mode.MUTABLE,
    partitioned_by=("received_date",),
    columns=(
        _DATE,
        _GAME,
        _REF,
        Column("event_id", "string", "Event that carried it."),
        Column("event_type", "string", "Type of that event."),
        Column("field", "string", "Declared pointer; the exact path is in the ciphertext."),
        _KEY_VERSION,
        _TS,
        _SEGMENT,
        _SEALED,
    ),
)

REFUSED = Table(
    key=("pii", "refused"),
    description="Events that the ingest server refused, whole and encrypted, with the reason.",
    mode=Mode.MUTABLE,
    partitioned_by=("received_date",),
    columns=(
        _DATE,
        Column("refused_id", "string", "Segment and place in it."),
        _GAME,
        Column("subject_ref", "string", "Keyed hash of the subject's id; of the day where no subject was readable."),
        Column("reason_code", "string", "Stable code of the rule that was broken."),
        Column("reason", "string", "The same as a sentence; nothing of the event is in it."),
        _KEY_VERSION,
        _TS,
        _SEGMENT,
        _SEALED,
    ),
)

AUDIT = Table(
    key=("pii", "audit"),
    description="Who read whose personal data when and for what; written before anything is decrypted.",
    mode=Mode.APPEND_ONLY,
    columns=(
        Column("read_id", "string", "Unique."),
        Column("read_ts", "timestamp", "UTC."),
        Column("reader", "string", "Who, as the caller says."),
        Column("purpose", "string", "What for; one of pii.purposes."),
        Column("table_name", "string", "pii/vault or pii/refused."),
        Column("game", "string", "Null: all games."),
        _REF,
    ),
)
