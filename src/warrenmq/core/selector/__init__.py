"""Selectors: conditions over the headers and properties of a message, in the syntax of SQL-92 and JMS.

`parse` reads a text once; the `Selector` it returns is then evaluated for each message.
"""

from warrenmq.core.selector.lexer import MAX_LENGTH, SelectorError
from warrenmq.core.selector.parser import MAX_DEPTH, Selector, parse

__all__ = ["MAX_DEPTH", "MAX_LENGTH", "Selector", "SelectorError", "parse"]
