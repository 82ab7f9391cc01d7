"""Text: reading it, cutting it into tokens and batches, and scoring what comes out."""
