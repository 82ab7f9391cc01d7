"""Speed measurements: decoding, training, the cost of gates, and a prediction of the gain from dropping."""
