"""The idea inside Hugging Face encoder-decoders."""
