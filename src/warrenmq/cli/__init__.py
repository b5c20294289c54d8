"""The command `warren`."""

from warrenmq.cli.app import main

__all__ = ["main"]
