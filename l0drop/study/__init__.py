"""Measuring: what a model keeps, what that costs, and how long it takes."""
