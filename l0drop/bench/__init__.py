"""Measuring speed: decoding, training, the cost of gates, and whether dropping would pay."""
