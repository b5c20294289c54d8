"""The tokens of a selector, with their positions."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

MAX_LENGTH = 8_192  # characters

KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})

_TOKEN = re.compile(
    r"""
      (?P<number> (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<name>   [^\W\d][\w$]* (?: \.[\w$]+ )* | \$[\w$]* )
    | (?P<text>   ' (?: [^'] | '' )* ' )
    | (?P<quoted> " (?: [^"] | "" )+ " )
    | (?P<symbol> <> | != | <= | >= | [=<>+\-*/(),] )
    """,
    re.VERBOSE,
)
_SPACE = re.compile(r"\s*")
_LARGEST = 2**63


class SelectorError(ValueError):
    """What is wrong with a selector, and at which character, counted from 1."""

    def __init__(self, fault: str, position: int) -> None:
        super().__init__(f"{fault} at position {position}")
        self.position = position


class Kind(Enum):
    NUMBER = auto()
    TEXT = auto()
    NAME = auto()  # of a property or header
    QUOTED = auto()  # a name in double quotes: of a header
    KEYWORD = auto()
    SYMBOL = auto()
    END = auto()


class Token(NamedTuple):
    """`value` is the number, the text without quotes, the name, or the keyword in upper case."""

    kind: Kind
    value: int | float | str
    position: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a selector, the last of kind END."""
    if len(text) > MAX_LENGTH:
        raise SelectorError(f"a selector has {MAX_LENGTH} characters at most: too long", MAX_LENGTH + 1)
    tokens: list[Token] = []
    at = _skip_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SelectorError(_describe(text[at]), at + 1)
        tokens.append(_token(match, at + 1))
        at = match.end()
        if tokens[-1].kind is Kind.NUMBER and text[at : at + 1].isidentifier():
            raise SelectorError("a name cannot begin with a digit: syntax error", tokens[-1].position)
        at = _skip_space(text, at)
    tokens.append(Token(Kind.END, "", len(text) + 1))
    return tokens


def _token(match: re.Match[str], position: int) -> Token:
    text = match[0]
    if match.lastgroup == "number":
        return Token(Kind.NUMBER, _number(text), position)
    if match.lastgroup == "text":
        return Token(Kind.TEXT, text[1:-1].replace("''", "'"), position)
    if match.lastgroup == "quoted":
        return Token(Kind.QUOTED, text[1:-1].replace('""', '"'), position)
    if match.lastgroup == "symbol":
        return Token(Kind.SYMBOL, "<>" if text == "!=" else text, position)
    keyword = text.upper()
    if keyword in KEYWORDS:
        return Token(Kind.KEYWORD, keyword, position)
    return Token(Kind.NAME, text, position)


def _number(text: str) -> int | float:
    """Return an integer of 64 bits at most, else a float."""
    if text.isdecimal() and len(text) < 20 and int(text) < _LARGEST:
        return int(text)
    return float(text)


def _describe(char: str) -> str:
    if char == "'":
        return "the text has no closing quote: syntax error"
    if char == '"':
        return "the quoted name is empty or has no closing quote: syntax error"
    return f"unexpected character {char!r}"


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
