"""Writes src/warrenmq/protocol/spec.py from tools/amqp091.toml.

    python tools/gen_spec.py           write the file
    python tools/gen_spec.py --check   exit 1 where the file is not what would be written

`render` is the whole of it: the TOML data in, the module's text out. tests/protocol/test_spec.py holds both together.
"""

import keyword
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tools" / "amqp091.toml"
TARGET = ROOT / "src" / "warrenmq" / "protocol" / "spec.py"

LINE_LENGTH = 120

# Wire type -> annotation, and the value where the caller gives none.
PYTHON_TYPES = {
    "bit": ("bool", "False"),
    "octet": ("int", "0"),
    "short": ("int", "0"),
    "long": ("int", "0"),
    "longlong": ("int", "0"),
    "shortstr": ("str", '""'),
    "longstr": ("bytes", 'b""'),
    "table": ("Table | None", "None"),
}

HEADER = '''"""AMQP 0-9-1 in RabbitMQ's dialect: the constants, and a class for every method.

Written by tools/gen_spec.py from tools/amqp091.toml: change those, then run it. The classes only carry data;
`methods.py` encodes and decodes them.
"""
# ruff: noqa: RUF023 - slots stand in wire order, and so does what repr shows

from typing import Any, ClassVar, Literal, TypeAlias

Table: TypeAlias = dict[str, Any]
FieldType: TypeAlias = Literal["bit", "octet", "short", "long", "longlong", "shortstr", "longstr", "table"]

'''

METHOD_BASE = '''
class Method:
    """A method: what the classes below have in common. Equal where class and arguments are."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    index: ClassVar[int]  # class id << 16 | method id
    name: ClassVar[str]  # as in "queue.declare"
    sender: ClassVar[Literal["client", "server", "both"]]
    has_content: ClassVar[bool] = False
    is_synchronous: ClassVar[bool] = False  # the sender waits for an answer
    fields: ClassVar[tuple[tuple[str, FieldType], ...]] = ()  # in wire order; reserved ones have no attribute

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"
'''


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: str

    @property
    def is_reserved(self) -> bool:
        return self.name.startswith("reserved")

    @property
    def parameter(self) -> str:
        return f"{self.name}: {PYTHON_TYPES[self.type][0]} = {self.default}"

    @property
    def value(self) -> str:
        # A table left out is an empty one, and each method gets its own.
        return f"{{}} if {self.name} is None else {self.name}" if self.type == "table" else self.name


def render(data: dict[str, Any]) -> str:
    """The text of spec.py."""
    parts = [HEADER, _render_constants(data), "\n", METHOD_BASE]
    names = []
    for klass in data["class"]:
        for method in klass["methods"]:
            names.append(_python_name(klass["name"], method["name"]))
            parts.append(_render_method(klass, method))
    parts.append("\n\nMETHODS: dict[int, type[Method]] = {\n    method.index: method\n    for method in (\n")
    parts.extend(f"        {name},\n" for name in names)
    parts.append("    )\n}\n")
    return "".join(parts)


def _render_constants(data: dict[str, Any]) -> str:
    lines = [f"FRAME_{name} = {f'0x{value:X}' if name == 'END' else value}" for name, value in data["frame"].items()]
    lines.append("")
    lines.extend(f"{reply['name']} = {reply['code']}" for reply in data["reply"])
    lines += ["", "REPLY_NAMES: dict[int, str] = {"]
    lines.extend(f'    {reply["name"]}: "{reply["name"]}",' for reply in data["reply"])
    lines += ["}", "", "# These end the channel; every other error ends the connection (AMQP 0-9-1 §1.2)."]
    soft = [reply["name"] for reply in data["reply"] if reply.get("closes") == "channel"]
    lines += ["CHANNEL_ERRORS = frozenset(", "    {", *(f"        {name}," for name in soft), "    }", ")"]
    return "\n".join(lines) + "\n"


def _render_method(klass: dict[str, Any], method: dict[str, Any]) -> str:
    fields = _parse_fields(method.get("fields", ""))
    open_fields = [field for field in fields if not field.is_reserved]
    text = f"\n\nclass {_python_name(klass['name'], method['name'])}(Method):\n"
    text += _wrap("__slots__ = (", [f'"{field.name}"' for field in open_fields], ")")
    text += f"\n    index = 0x{klass['id']:04X}_{method['id']:04X}\n"
    text += f'    name = "{klass["name"]}.{method["name"]}"\n'
    text += f'    sender = "{method["sender"]}"\n'
    if method.get("content"):
        text += "    has_content = True\n"
    if method.get("sync"):
        text += "    is_synchronous = True\n"
    if fields:
        text += _wrap("fields = (", [f'("{field.name}", "{field.type}")' for field in fields], ")")
    if open_fields:
        text += "\n" + _wrap("def __init__(", ["self", *(field.parameter for field in open_fields)], ") -> None:")
        text += "".join(f"        self.{field.name} = {field.value}\n" for field in open_fields)
    return text


def _parse_fields(text: str) -> list[Field]:
    fields = []
    for part in filter(None, map(str.strip, text.split(","))):
        declaration, _, default = map(str.strip, part.partition("="))
        name, wire_type = declaration.split()
        if keyword.iskeyword(name):
            name += "_"
        annotation, zero = PYTHON_TYPES[wire_type]
        fields.append(Field(name, wire_type, _literal(annotation, default) if default else zero))
    return fields


def _literal(annotation: str, value: str) -> str:
    quoted = {"str": f'"{value}"', "bytes": f'b"{value}"', "bool": value.capitalize()}
    return quoted.get(annotation, value)


def _python_name(class_name: str, method_name: str) -> str:
    return class_name.capitalize() + "".join(word.capitalize() for word in method_name.split("-"))


def _wrap(opening: str, items: list[str], closing: str) -> str:
    """One line where it fits, else one item a line, as the formatter would have it."""
    indent = "    "
    single = ", ".join(items)
    if len(items) == 1 and opening.endswith("= ("):
        single += ","
    line = f"{indent}{opening}{single}{closing}\n"
    if len(line) <= LINE_LENGTH + 1:
        return line
    body = f"{indent}    {single}\n"
    if opening.startswith("def") and len(body) <= LINE_LENGTH + 1:
        return f"{indent}{opening}\n{body}{indent}{closing}\n"
    return f"{indent}{opening}\n" + "".join(f"{indent}    {item},\n" for item in items) + f"{indent}{closing}\n"


def main(arguments: list[str]) -> int:
    text = render(tomllib.loads(SOURCE.read_text(encoding="utf-8")))
    if arguments == ["--check"]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} differs from its source: run python tools/gen_spec.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
