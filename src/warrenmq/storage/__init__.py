"""Keeps what the core decides."""
