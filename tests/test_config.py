"""Where settings come from, which source wins, and how a wrong one is refused."""

from pathlib import Path

import pytest

from warrenmq import config
from warrenmq.config import ConfigError, Settings, load
from warrenmq.core.durability import Durability
from warrenmq.server.options import ServerOptions
from warrenmq.storage.options import StorageOptions

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "warren.toml"
    path.write_text(text)
    return path


def refusal(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None, file: Path | None = None
) -> str:
    with pytest.raises(ConfigError) as refused:
        load(flags or {}, environ or {}, file)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_defaults_are_rabbitmqs_where_both_have_the_setting() -> None:
    settings = load({}, {}, None)
    assert (settings.host, settings.port, settings.http_port) == ("127.0.0.1", 5672, 15672)
    assert (settings.heartbeat, settings.frame_max, settings.channel_max) == (60, 131072, 2047)
    assert (settings.handshake_timeout, settings.max_message_size) == (10.0, 134217728)
    assert (settings.default_user, settings.default_pass, settings.loopback_users) == ("guest", "guest", {"guest"})


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nhttp_port = 1\nheartbeat = 1\nhost = "0.0.0.0"')
    settings = load({"port": "3", "http_port": None}, {"WARREN_PORT": "2", "WARREN_HTTP_PORT": "2"}, file)
    assert (settings.port, settings.http_port, settings.heartbeat, settings.channel_max) == (3, 2, 1, 2047)
    assert settings.host == "0.0.0.0"


def test_file_can_be_named_by_variable(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 7")
    assert load({}, {"WARREN_CONFIG": str(file)}, None).port == 7


def test_flag_names_the_file_before_the_variable_does(tmp_path: Path) -> None:
    assert load({}, {"WARREN_CONFIG": "/nowhere"}, write(tmp_path, "port = 7")).port == 7


def test_empty_variable_counts_as_not_set() -> None:
    assert load({}, {"WARREN_PORT": ""}, None).port == 5672


def test_variables_of_others_are_left_alone() -> None:
    environ = {"PATH": "/bin", "WARREN_PURE": "1", "WARREN_REQUIRE_COMPILED": "1", "WARREN_TEST_URL": "amqp://"}
    assert load({}, environ, None).port == 5672


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("prot", "port"), ("http-port", "http_port"), ("hartbeat", "heartbeat"), ("users", "loopback_users")],
)
def test_unknown_key_of_the_file_is_refused_with_the_nearest(tmp_path: Path, written: str, nearest: str) -> None:
    message = refusal(file=write(tmp_path, f"{written} = 1"))
    assert f"unknown key {written!r}; did you mean {nearest}?" in message
    assert str(tmp_path) in message


def test_unknown_key_like_nothing_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    message = refusal(file=write(tmp_path, "zzz = 1"))
    assert all(key in message for key in config.KEYS)


def test_table_in_the_file_is_refused_as_an_unknown_key(tmp_path: Path) -> None:
    assert "unknown key 'server'" in refusal(file=write(tmp_path, "[server]\nport = 1"))


def test_unknown_variable_is_refused_with_the_nearest() -> None:
    assert refusal(environ={"WARREN_PROT": "1"}) == "unknown variable 'WARREN_PROT'; did you mean WARREN_PORT?"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("port", "70000", "a port number (0 = any free port) from 0 to 65535"),
        ("port", "five", "a port number"),
        ("port", "-1", "a port number"),
        ("http_port", "x", 'or "off"'),
        ("log_level", "loud", "one of debug, info, warning, error"),
        ("heartbeat", "1.5", "a number of seconds (0 = none) from 0 to 65535"),
        ("frame_max", "100", "from 4096"),
        ("channel_max", "0", "from 1 to 65535"),
        ("handshake_timeout", "0", "greater than 0"),
        ("handshake_timeout", "nan", "greater than 0"),
        ("handshake_timeout", "soon", "greater than 0"),
        ("max_message_size", "1XB", "a size in bytes"),
        ("max_message_size", "0", "a size in bytes"),
        ("memory_limit", "0%", "a percentage of the memory"),
        ("memory_limit", "101%", "a percentage of the memory"),
        ("memory_limit", "much", "a percentage of the memory"),
        ("disk_free_limit", "-1", "a size in bytes (0 = no limit)"),
        ("durability", "sometimes", '"fsync", "interval=MS"'),
        ("durability", "interval=0", '"fsync", "interval=MS"'),
        ("log_limit", "1000", "a size of at least 1MiB"),
    ],
)
def test_unfit_value_is_refused_with_key_value_and_what_fits(key: str, value: str, expected: str) -> None:
    message = refusal(environ={"WARREN_" + key.upper(): value})
    assert message.startswith(f"WARREN_{key.upper()} = {value!r}: expected ")
    assert expected in message


@pytest.mark.parametrize(
    "line",
    ["port = true", "port = 1.0", 'host = ""', "host = 5", "data_dir = 5", "loopback_users = [1]", "log_level = 1"],
)
def test_wrong_type_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    key = line.split(" = ")[0]
    assert f"{key} = " in refusal(file=write(tmp_path, line))


def test_refusal_names_the_flag() -> None:
    assert refusal(flags={"http_port": "x"}).startswith("--http-port = 'x': expected")


def test_password_is_not_repeated_in_a_refusal(tmp_path: Path) -> None:
    message = refusal(file=write(tmp_path, "default_pass = 123456"))
    assert "default_pass = (secret): expected a non-empty text" in message
    assert "123456" not in message


@pytest.mark.parametrize(
    ("value", "size"),
    [("1024", 1024), ("64MiB", 64 * 2**20), ("1.5 GiB", 3 * 2**29), ("2gb", 2 * 10**9), ("10B", 10), ("1KiB", 1024)],
)
def test_sizes_are_read_with_their_units(value: str, size: int) -> None:
    assert load({}, {"WARREN_MAX_MESSAGE_SIZE": value}, None).max_message_size == size
    assert load({}, {"WARREN_MEMORY_LIMIT": value}, None).memory_limit == size


def test_memory_limit_can_be_a_share_of_the_memory() -> None:
    assert load({}, {"WARREN_MEMORY_LIMIT": "50%"}, None).memory_limit == config.machine_memory() * 50 // 100


def test_memory_limit_of_0_is_no_limit() -> None:
    assert load({}, {"WARREN_MEMORY_LIMIT": "0"}, None).memory_limit == 0


@pytest.mark.parametrize("value", ["off", "none"])
def test_http_can_be_switched_off(value: str) -> None:
    assert load({"http_port": value}, {}, None).http_port is None


def test_http_can_be_switched_off_in_the_file(tmp_path: Path) -> None:
    assert load({}, {}, write(tmp_path, "http_port = false")).http_port is None


def test_names_are_a_list_in_the_file_and_have_commas_in_a_variable(tmp_path: Path) -> None:
    assert load({}, {}, write(tmp_path, 'loopback_users = ["a", "b"]')).loopback_users == {"a", "b"}
    assert load({}, {"WARREN_LOOPBACK_USERS": "a, b"}, None).loopback_users == {"a", "b"}
    assert load({}, {}, write(tmp_path, "loopback_users = []")).loopback_users == frozenset()


def test_data_folder_follows_the_convention_of_the_platform() -> None:
    assert load({}, {"XDG_DATA_HOME": "/data"}, None).data_dir == Path("/data/warrenmq")
    assert load({}, {"HOME": "/home/ann"}, None).data_dir == Path("/home/ann/.local/share/warrenmq")
    assert load({}, {"HOME": "/home/ann", "XDG_DATA_HOME": "relative"}, None).data_dir == Path(
        "/home/ann/.local/share/warrenmq"
    )


def test_data_folder_can_be_none() -> None:
    assert load({"data_dir": "none"}, {}, None).data_dir is None


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: folder / "missing.toml", "cannot read the configuration: No such file or directory"),
        (lambda folder: folder, "cannot read the configuration: Is a directory"),
        (lambda folder: write(folder, "port = "), "not valid TOML"),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, make, expected: str) -> None:  # type: ignore[no-untyped-def]
    assert expected in refusal(file=make(tmp_path))


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    assert "not valid TOML" in refusal(file=path)


def test_server_is_given_every_option_it_declares(tmp_path: Path) -> None:
    options = config.server_options(load({}, {"WARREN_HEARTBEAT": "7", "WARREN_DEFAULT_USER": "ann"}, None))
    assert (options.heartbeat, options.default_user) == (7, "ann")
    assert set(ServerOptions.__dataclass_fields__) <= set(config.KEYS)


def test_storage_is_given_its_options() -> None:
    environ = {"WARREN_DURABILITY": "interval=20", "WARREN_LOG_LIMIT": "1MiB"}
    options = config.storage_options(load({}, environ, None))
    assert options.durability == Durability("interval", 20)
    assert (options.log_limit, options.log_file_size) == (2**20, 2**18)
    assert config.storage_options(load({"durability": "os"}, environ, None)).durability == Durability("os")


def test_lines_are_paged_out_before_publishers_are_paused() -> None:
    for limit, budget in (("40MB", 30_000_000), ("0", StorageOptions().memory_budget)):
        assert config.storage_options(load({}, {"WARREN_MEMORY_LIMIT": limit}, None)).memory_budget == budget


def test_defaults_of_the_storage_are_those_of_the_settings() -> None:
    assert config.storage_options(Settings()) == StorageOptions()


def test_disk_free_limit_of_0_is_no_limit() -> None:
    assert load({}, {"WARREN_DISK_FREE_LIMIT": "0"}, None).disk_free_limit == 0


def test_defaults_of_the_server_are_those_of_the_settings() -> None:
    options, settings = ServerOptions(), Settings()
    # An embedded broker is a guest in its process: it does not measure the machine, keep a core busy or pause the loop.
    for name in set(ServerOptions.__dataclass_fields__) - {"memory_limit", "busy_poll_us", "max_pause_us"}:
        assert getattr(options, name) == getattr(settings, name), name


@pytest.mark.parametrize("key", config.KEYS)
def test_every_key_has_its_row_in_the_documentation(key: str) -> None:
    assert f"| `{key}` |" in DOCUMENT.read_text()


def test_documentation_has_no_key_that_does_not_exist() -> None:
    rows = [line.split("`")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert rows == list(config.KEYS)


POLICIES = """
[[policies]]
name = "limit"
pattern = "^logs"
definition = { max-length = 5, overflow = "reject-publish" }
priority = 2
apply-to = "queues"

[[policies]]
vhost = "other"
name = "ttl"
pattern = ""
definition.message-ttl = 1000

[[operator_policies]]
name = "bound"
pattern = ""
definition.max-length = 100
"""


def test_policies_are_tables_of_the_file(tmp_path: Path) -> None:
    settings = load({}, {}, write(tmp_path, POLICIES))
    assert [policy.values() for policy in settings.policies] == [
        {
            "vhost": "/",
            "name": "limit",
            "pattern": "^logs",
            "apply-to": "queues",
            "definition": {"max-length": 5, "overflow": "reject-publish"},
            "priority": 2,
        },
        {
            "vhost": "other",
            "name": "ttl",
            "pattern": "",
            "apply-to": "all",
            "definition": {"message-ttl": 1000},
            "priority": 0,
        },
    ]
    assert [policy.definition for policy in settings.operator_policies] == [{"max-length": 100}]


def test_policies_in_a_variable_are_json() -> None:
    text = '[{"name": "p", "pattern": "^q", "definition": {"max-length": 5}}]'
    (policy,) = load({}, {"WARREN_POLICIES": text}, None).policies
    assert (policy.name, policy.definition) == ("p", {"max-length": 5})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policies = 1", "a list of tables"),
        ("[[policies]]\nname = 'p'", "a table with name, pattern and definition"),
        ("[[policies]]\nname = 'p'\npattern = ''\ndefinition = {}\nlimit = 1", "policies without the key 'limit'"),
        ("[[policies]]\nname = 1\npattern = ''\ndefinition = {}", "policies with a text as vhost and name"),
        (
            "[[policies]]\nname = 'p'\npattern = '('\ndefinition = {max-length = -1}",
            "policy 'p': -1 is not a valid maximum length; pattern should be regular expression but is invalid",
        ),
        ("[[operator_policies]]\nname = 'p'\npattern = ''\ndefinition = {max-age = '1h'}", "are not recognised"),
    ],
)
def test_a_policy_that_is_not_valid_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(file=write(tmp_path, text))
