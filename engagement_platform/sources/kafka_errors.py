"""What can be wrong between a job and its Kafka topic. Raised by `kafka`."""

from __future__ import annotations

from engagement_platform.errors import PlatformError

_SERVERS_SETTING = "ENGAGEMENT_PLATFORM_KAFKA__BOOTSTRAP_SERVERS"
_RESET = "what is already there counts as duplicate: engagement-platform reset JOB"


class BrokerUnavailable(PlatformError):
    """No broker answered in time."""

    def __init__(self, bootstrap_servers: str, seconds: float, reason: str) -> None:
        super().__init__(
            f"No Kafka broker at {bootstrap_servers} answered within {seconds:g} s ({reason}). No table was changed "
            f"and no offset lost; the next run goes on from the checkpoint. Start the broker, or correct "
            f"{_SERVERS_SETTING}."
        )


class BrokerUnknown(BrokerUnavailable):
    """No address is set, and no broker runs on this home."""

    def __init__(self) -> None:
        PlatformError.__init__(
            self,
            "There is no Kafka broker to ask: none runs on this home. Nothing was read or written. Start `engagement-"
            f"platform up` or `engagement-platform services` on it, or set {_SERVERS_SETTING}.",
        )


class KafkaRefused(PlatformError):
    """A client does not take an option, or a broker refused a request to these credentials."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Kafka refused: {reason}. Nothing was read or written. Correct kafka.security (librdkafka's names) or "
            "kafka.spark_options; its user has to read and describe the topic."
        )


class TopicMissing(PlatformError):
    """The broker does not have the topic."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(
            f"The Kafka broker at {bootstrap_servers} has no topic {topic}. No table was changed. Create the topic, or "
            "name the right one in kafka.engagements_topic, kafka.mutation_requests_topic, kafka.profile_changes_topic "
            "or page_views.topic, or switch its pipeline off (pipelines)."
        )


class TopicRecreated(PlatformError):
    """Another topic or cluster, by its id; or, where brokers give none, by what is gone from the topic."""

    def __init__(self, topic: str, found: str) -> None:
        super().__init__(
            f"The checkpoint of topic {topic} {found}: it was recreated or truncated, or the cluster is another. "
            f"No table was changed. Correct {_SERVERS_SETTING}, or read the new topic from its beginning, {_RESET}"
        )


class OffsetsExpired(PlatformError):
    """Records that were not read yet are gone from the broker: offsets lost_from (included) to lost_to (excluded)."""

    def __init__(self, topic: str, partition: int, lost_from: int, lost_to: int) -> None:
        super().__init__(
            f"{topic}[{partition}] is needed from offset {lost_from}, but the {lost_to - lost_from} records in "
            f"[{lost_from}, {lost_to}) have expired. No table was changed. Send them to the topic again if you have "
            f"them, then accept the gap and read what the broker still has, {_RESET}"
        )
