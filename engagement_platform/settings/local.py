"""The embedded services and their sample traffic."""

from __future__ import annotations

from pydantic import Field

from engagement_platform.settings.section import Section


class TrafficSettings(Section):
    rate: float = Field(default=50.0, ge=0, description="Sample engagements a second that `up` produces; 0 is off.")
    seed: int = Field(default=20201120, description="Seed of the generator; the same seed makes the same messages.")
    organizations: int = Field(default=48, ge=1, description="Organizations of the traffic model, 90 % of them small.")
    persons_per_organization: int = Field(default=200, ge=1, description="Persons in a small organization.")
    mutation_share: float = Field(default=0.2, ge=0, le=1, description="Mutation requests per engagement.")
    update_share: float = Field(default=0.02, ge=0, le=1, description="Share of engagements sent again, next version.")
    late_share: float = Field(default=0.02, ge=0, le=1, description="Share of engagements that are days late.")
    duplicate_share: float = Field(default=0.01, ge=0, le=1, description="Share of messages sent twice.")
    profile_share: float = Field(
        default=0.2, ge=0, le=1, description="Changes of profiles per engagement; in `up` and `produce --follow`."
    )
    profiles: int = Field(default=5000, ge=1, description="Profiles that exist at a time.")
    page_view_share: float = Field(
        default=0.1, ge=0, le=1, description="Page views per engagement; in `up` and `produce --follow`."
    )
    game_rate: float = Field(
        default=20.0,
        ge=0,
        description="Sample events a second that games of `up` and `services` post to the ingest server; 0 is off.",
    )
    bad_share: float = Field(default=0.001, ge=0, le=1, description="Share of messages that must be quarantined.")


class EmbeddedSettings(Section):
    kafka_port: int = Field(default=19092, description="Port of the embedded broker on 127.0.0.1.")
    kafka_controller_port: int = Field(default=19093, description="Port of the embedded broker's KRaft controller.")
    kafka_partitions: int = Field(default=4, ge=1, description="Partitions of each topic made here.")
    connect_port: int = Field(default=15002, description="Port of the embedded Spark Connect server.")
    aws_port: int = Field(default=15566, description="Port of the emulator of S3, SNS and SQS.")
    ingest_port: int = Field(default=18088, description="Port of the ingest server, which delivers into the emulator.")
    ui_port: int = Field(default=3000, description="Port of the Dagster UI.")
    code_port: int = Field(default=4266, description="Port of the Dagster code server.")
