"""WarrenMQ: a fast message broker that every RabbitMQ client can use.

`warrenmq.Broker` is a private broker for tests and small programs; `warren serve` is the broker on a machine.
Importing this package is light: what is heavy is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warrenmq.embedded import Broker as Broker

__version__ = "0.1.0"

COMPILED: bool  # whether the hot modules run compiled; looked up on first use

__all__ = ["COMPILED", "Broker", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from warrenmq.embedded import Broker

        return Broker
    if name == "COMPILED":
        return _is_compiled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_compiled() -> bool:
    """Whether every module that has a .pxd beside it is there in compiled form (Python then prefers that form)."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    declarations = list(Path(__file__).parent.rglob("*.pxd"))
    compilable = [pxd for pxd in declarations if pxd.with_suffix(".py").exists()]
    return bool(compilable) and all(
        any(pxd.with_name(pxd.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES) for pxd in compilable
    )
