"""Merge: partial aggregates of a window to facts, over time."""
