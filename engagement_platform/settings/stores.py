"""The checkpoint, batch metadata and lease stores."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, SecretStr

from engagement_platform.settings.section import Section


class StoreSettings(Section):
    url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL of the checkpoint, batch metadata and lease stores. Not set: SQLite in "
        "<home>/stores.db. Production: postgresql+psycopg2://user:password@host/database.",
    )
    lease_ttl: timedelta = Field(
        default=timedelta(seconds=60),
        description="A lease without a heartbeat for this long may be taken over. A holder whose process is gone from "
        "the same machine is replaced at once.",
    )
    lease_wait: timedelta = Field(
        default=timedelta(minutes=5),
        description="How long a run waits for another holder before it ends and says who holds the lease. Longer than "
        "`lease_ttl`, so that a crashed holder is outlived.",
    )
    lake_lease_ttl: timedelta = Field(
        default=timedelta(minutes=5),
        description="Another Spark driver may take over a lake at s3a:// that no session of the one before has used "
        "for this long. Longer than a single write: one whose client was killed goes on in the Connect server.",
    )
