"""The method inside Hugging Face encoder-decoders."""
