"""The method in plain torch: gates, the L0 penalty and the short memory. Imports no model library."""
