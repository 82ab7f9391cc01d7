"""Text: read it, tokenize it, make batches, and score outputs."""
