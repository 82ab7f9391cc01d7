"""Training: Hugging Face's Trainer with the penalty, token-budget batches and a steered λ."""
