"""What the service reports to Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHARES = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics:
    """One registry per service, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("l0drop_requests", "Answers by path and status", ["path", "status"], **here)
        self.seconds = Histogram(
            "l0drop_request_seconds", "Seconds from a request to its answer", ["path"], buckets=SECONDS, **here
        )
        self.in_progress = Gauge("l0drop_requests_in_progress", "Requests without an answer yet", **here)
        self.queued = Gauge("l0drop_queue_texts", "Texts that wait for decoding", **here)
        self.queue_seconds = Histogram(
            "l0drop_queue_seconds", "Seconds that a text waits for decoding", buckets=SECONDS, **here
        )
        self.batch_texts = Histogram("l0drop_batch_texts", "Texts decoded together", ["model"], buckets=SIZES, **here)
        self.batch_seconds = Histogram(
            "l0drop_batch_seconds", "Seconds to decode a batch", ["model"], buckets=SECONDS, **here
        )
        self.source_tokens = Counter("l0drop_source_tokens", "Source tokens, or rows of audio", ["model"], **here)
        self.kept_tokens = Counter("l0drop_kept_tokens", "Those that the decoder was given", ["model"], **here)
        self.kept_share = Histogram(
            "l0drop_kept_share", "Share of source tokens kept, by text", ["model"], buckets=SHARES, **here
        )
        self.audio_seconds = Counter("l0drop_audio_seconds", "Seconds of audio transcribed", ["model"], **here)
        self.output_tokens = Counter("l0drop_output_tokens", "Output tokens", ["model"], **here)
        self.failed = Counter("l0drop_failed_texts", "Texts whose decoding failed", ["model"], **here)
        self.stopped = Counter(
            "l0drop_stopped_texts", "Texts whose decoding was stopped, because nobody waited for it", ["model"], **here
        )
        self.expired = Counter("l0drop_expired_texts", "Texts whose deadline passed before they were decoded", **here)
        self.shadow_texts = Counter(
            "l0drop_shadow_texts",
            "Texts and recordings decoded a second time",
            ["model", "reference"],
            **here,
        )
        self.shadow_skipped = Counter(
            "l0drop_shadow_skipped_texts",
            "Texts chosen for a second decoding that was left out, because the service was busy",
            ["model", "reference"],
            **here,
        )
        self.shadow_same = Counter(
            "l0drop_shadow_same_texts", "Of these, texts with the same output", ["model", "reference"], **here
        )
        self.shadow_chrf = Gauge(
            "l0drop_shadow_chrf",
            "chrF against the second output, mean of the recent texts",
            ["model", "reference"],
            **here,
        )
        self.shadow_agreement = Gauge(
            "l0drop_shadow_agreement", "Share of the same output, over the recent texts", ["model", "reference"], **here
        )
        self.shadow_kept = Gauge(
            "l0drop_shadow_kept_share", "Kept share of the recent texts", ["model", "reference"], **here
        )

    def text(self) -> bytes:
        """All values in Prometheus' text format."""
        return generate_latest(self.registry)
