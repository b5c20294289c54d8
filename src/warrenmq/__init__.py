"""WarrenMQ: a fast message broker that every RabbitMQ client can use.

`warrenmq.Broker` is a private broker for tests and small programs; `warren serve` runs a broker on a machine. Importing
this package is light: heavy modules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warrenmq.embedded import Broker as Broker

__version__ = "0.1.0"

COMPILED: bool  # True if the hot modules run compiled; determined on first use

__all__ = ["COMPILED", "Broker", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from warrenmq.embedded import Broker

        return Broker
    if name == "COMPILED":
        return _is_compiled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_compiled() -> bool:
    """Return True if the hot modules are compiled: all of them are, or none (setup.py)."""
    from warrenmq.protocol.output import IS_COMPILED

    return IS_COMPILED
