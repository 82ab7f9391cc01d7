"""From encodings to text."""
