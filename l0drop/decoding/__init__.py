"""Decoding: from text to tokens, memory, search and text again."""
