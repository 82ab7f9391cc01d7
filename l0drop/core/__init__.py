"""The idea itself: gates, the L0 term and the short memory, in plain torch. Knows no model library."""
