"""spec.py is what its generator writes, and says what other implementations of AMQP 0-9-1 say."""

import importlib.util
import inspect
import tomllib
from pathlib import Path
from types import ModuleType

import pika.spec
import pytest
from pamqp import commands

from warrenmq.protocol import errors, spec

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    location = importlib.util.spec_from_file_location("gen_spec", TOOLS / "gen_spec.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


def test_spec_is_what_its_generator_writes(generator: ModuleType) -> None:
    written = Path(inspect.getsourcefile(spec) or "").read_text(encoding="utf-8")
    assert written == generator.render(tomllib.loads((TOOLS / "amqp091.toml").read_text(encoding="utf-8")))


def test_the_generators_check_passes(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0


def test_every_method_of_pika_is_here_with_its_name_and_synchronicity() -> None:
    for index, theirs in pika.spec.methods.items():
        ours = spec.METHODS[index]
        assert ours.__name__.lower() == theirs.NAME.replace(".", "").lower()
        assert ours.is_synchronous == theirs.__new__(theirs).synchronous, ours.name
        assert ours.has_content == pika.spec.has_content(index), ours.name


def test_every_method_of_pamqp_is_here_with_its_field_types() -> None:
    for index, theirs in commands.INDEX_MAPPING.items():
        ours = spec.METHODS[index]
        assert [kind for _, kind in ours.fields] == [getattr(theirs, f"_{name}") for name in theirs.__slots__]
        assert ours.is_synchronous == theirs.synchronous


def test_no_method_is_missing_or_twice() -> None:
    classes = [value for value in vars(spec).values() if isinstance(value, type) and spec.Method in value.__bases__]
    assert len(classes) == len(spec.METHODS) == 66
    assert set(classes) == set(spec.METHODS.values())
    assert all(method.sender in ("client", "server", "both") for method in classes)


def test_constants_are_those_of_pika() -> None:
    for name in ("FRAME_METHOD", "FRAME_HEADER", "FRAME_BODY", "FRAME_HEARTBEAT", "FRAME_END", "FRAME_MIN_SIZE"):
        assert getattr(spec, name) == getattr(pika.spec, name)
    for code, name in spec.REPLY_NAMES.items():
        assert getattr(spec, name) == code == getattr(pika.spec, name)


def test_errors_carry_the_codes_and_names_of_the_specification() -> None:
    for error in _all_subclasses(errors.ProtocolError):
        assert spec.REPLY_NAMES[error.reply_code] == error.code_name
        expected = errors.Scope.CHANNEL if error.reply_code in spec.CHANNEL_ERRORS else errors.Scope.CONNECTION
        assert error.scope is expected


def _all_subclasses(parent: type[errors.ProtocolError]) -> list[type[errors.ProtocolError]]:
    children = parent.__subclasses__()
    return children + [grandchild for child in children for grandchild in _all_subclasses(child)]
