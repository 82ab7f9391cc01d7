"""Decoding: from text or audio to memories, and by search to text again."""
