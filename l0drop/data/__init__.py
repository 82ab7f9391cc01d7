"""Text and audio: read them, tokenize, make batches, tag words, and score outputs."""
