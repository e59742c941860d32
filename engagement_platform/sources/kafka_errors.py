"""What can be wrong between a job and its Kafka topic, each cause its own error. Raised by `kafka`."""

from __future__ import annotations

from engagement_platform.errors import PlatformError

_SERVERS_SETTING = "ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS"


class BrokerUnavailable(PlatformError):
    """No broker answered in time."""

    def __init__(self, bootstrap_servers: str, seconds: float, reason: str) -> None:
        self.bootstrap_servers, self.seconds, self.reason = bootstrap_servers, seconds, reason
        super().__init__(
            f"No Kafka broker at {bootstrap_servers} answered within {seconds:g} s ({reason}). No table was changed "
            f"and no offset lost; the next run goes on from the checkpoint. Start the broker, or correct "
            f"{_SERVERS_SETTING}."
        )


class BrokerRefused(PlatformError):
    """A broker refused the request, most often to credentials or for want of an ACL."""

    def __init__(self, bootstrap_servers: str, topic: str, code: str, reason: str) -> None:
        self.bootstrap_servers, self.topic, self.code, self.reason = bootstrap_servers, topic, code, reason
        super().__init__(
            f"The Kafka broker at {bootstrap_servers} refused to describe topic {topic}: {code} ({reason}). No table "
            f"was changed. Check kafka.security and that its user may read and describe the topic."
        )


class KafkaOptionRefused(PlatformError):
    """The Kafka client does not take one of the configured options."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"The Kafka client refused its configuration: {reason}. Nothing was read or written. Correct "
            "kafka.security; its names are librdkafka's."
        )


class TopicMissing(PlatformError):
    """The broker does not have the topic."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.bootstrap_servers, self.topic = bootstrap_servers, topic
        super().__init__(
            f"The Kafka broker at {bootstrap_servers} has no topic {topic}. No table was changed. Create the topic, or "
            "name the right one in kafka.engagements_topic, kafka.mutation_requests_topic, kafka.profile_changes_topic "
            "or page_views.topic, or switch its pipeline off (pipelines)."
        )


class TopicRecreated(PlatformError):
    """Another topic of the same name, by its id; or, where brokers give none, by what is gone from it."""

    def __init__(self, topic: str, found: str) -> None:
        """found: how that is known."""
        self.topic, self.found = topic, found
        super().__init__(
            f"The checkpoint {found}: the topic {topic} was recreated or truncated. No table was changed. Read the new "
            f"topic from its beginning, what is already there counts as duplicate: engagement-platform reset JOB"
        )


class ClusterChanged(PlatformError):
    """Another Kafka cluster answers than the one that the job has read from."""

    def __init__(self, topic: str, bootstrap_servers: str, pinned: str, now: str) -> None:
        self.topic, self.pinned, self.now = topic, pinned, now
        super().__init__(
            f"The checkpoint is of topic {topic} on the Kafka cluster {pinned}, and {bootstrap_servers} is the cluster "
            f"{now}: offsets of one mean nothing on the other. No table was changed. Correct {_SERVERS_SETTING}; or, "
            f"when the job moved on purpose, read that topic from its beginning, what is already there counts as "
            f"duplicate: engagement-platform reset JOB"
        )


class OffsetsExpired(PlatformError):
    """Records that were not read yet are gone from the broker: offsets lost_from (included) to lost_to (excluded)."""

    def __init__(self, topic: str, partition: int, lost_from: int, lost_to: int) -> None:
        self.topic, self.partition, self.lost_from, self.lost_to = topic, partition, lost_from, lost_to
        super().__init__(
            f"{topic}[{partition}] is needed from offset {lost_from}, but the broker keeps it from {lost_to}: the "
            f"{lost_to - lost_from} records in [{lost_from}, {lost_to}) can no longer be read. No table was changed. "
            f"Send them to the topic again if you have them, then accept the gap and read what the broker still has, "
            f"what is already there counts as duplicate: engagement-platform reset JOB"
        )
