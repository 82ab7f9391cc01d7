"""Damage in Ogg files (Vorbis, Opus): libsndfile skips damaged pages without a word, and the audio in them is lost.

An Ogg file is a row of pages. Each has a header of 27 bytes, a table with the lengths of its parts, and its content.
The header has the checksum of the whole page, its number, and the samples up to its end (the granule position).
"""

import struct
import zlib
from typing import BinaryIO

MARK = b"OggS"
HEADER = struct.Struct("<4sBBqIIIB")
"""Mark, version, kind, samples up to the end of the page, stream, number of the page, checksum, parts."""
MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Ogg's checksum is that of zlib over bytes with their bits in reverse order."""
UNKNOWN = -1
"""The granule position of a page in which no packet ends."""


def seconds_before_damage(file: BinaryIO) -> float | None:
    """The seconds up to the first page that is damaged, missing or incomplete; None without one, or if it is no Ogg.

    Bytes after the last page that contain no further page, such as tags, are no damage.
    """
    file.seek(0)
    numbers: dict[int, int] = {}
    rates: dict[int, int] = {}
    seconds = 0.0
    while head := file.read(HEADER.size):
        if not head.startswith(MARK):
            return seconds if numbers and MARK in head + file.read() else None
        if len(head) < HEADER.size:
            return seconds
        _, _, _, granule, stream, number, checksum, parts = HEADER.unpack(head)
        table = file.read(parts)
        content = file.read(sum(table))
        is_whole = len(table) == parts and len(content) == sum(table)
        if not is_whole or page_checksum(head + table + content) != checksum or number != numbers.get(stream, number):
            return seconds
        numbers[stream] = (number + 1) % 2**32
        rate = rates.setdefault(stream, _rate(content))
        if granule != UNKNOWN and rate:
            seconds = max(seconds, granule / rate)
    return None


def _rate(content: bytes) -> int:
    """Samples per second of a stream, from the content of its first page; 0 if it has no audio that is known."""
    if content.startswith(b"OpusHead"):
        return 48_000  # whatever the rate of the audio that was encoded
    return int.from_bytes(content[12:16], "little") if content.startswith(b"\x01vorbis") else 0


def page_checksum(page: bytes) -> int:
    """The checksum of a page, whose own checksum counts as 0."""
    blank = page[:22] + bytes(4) + page[26:]
    mirrored = zlib.crc32(blank.translate(MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
