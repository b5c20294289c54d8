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

# Constants and inline functions that compiled modules cimport; their .py is for the uncompiled form.
_INLINE_ONLY = ("events/fields", "events/memory")


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from warrenmq.embedded import Broker

        return Broker
    if name == "COMPILED":
        return _is_compiled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_compiled() -> bool:
    """Return True if every module with a .pxd has a compiled file, which Python prefers."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    declarations = list(Path(__file__).parent.rglob("*.pxd"))
    compilable = [
        pxd
        for pxd in declarations
        if pxd.with_suffix(".py").exists() and f"{pxd.parent.name}/{pxd.stem}" not in _INLINE_ONLY
    ]
    return bool(compilable) and all(
        any(pxd.with_name(pxd.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES) for pxd in compilable
    )
