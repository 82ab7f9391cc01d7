"""The limits of the service. Each has an option of `l0drop serve` or is generous enough for its clients."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on one request, and on all requests together.

    body, audio_body: bytes, without and with audio. held: bytes of the bodies and recordings of all requests.
    audio_seconds: of one recording. text: characters of one text with its prefix. texts: texts in one request. beams,
    new_tokens: of the search. queue: texts that wait. requests: requests in progress. strangers: the same before the
    key is known, because it is in the body. seconds: from the head of a request to its answer. body_seconds: until the
    body has arrived. header_seconds: until the head of a new connection's request has arrived. answer_seconds: until
    the client has taken the answer.
    """

    body: int = 2_000_000
    audio_body: int = 25_000_000
    held: int = 1_000_000_000
    audio_seconds: float = 1800.0
    text: int = 50_000
    texts: int = 256
    beams: int = 16
    new_tokens: int = 1024
    queue: int = 2048
    requests: int = 512
    strangers: int = 64
    seconds: float = 60.0
    body_seconds: float = 15.0
    header_seconds: float = 15.0
    answer_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name}: expected a number above 0, got {value}")
