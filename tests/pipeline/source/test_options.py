"""The options of a read: what is taken, and what is said of what is not."""

from __future__ import annotations

import pickle

import pytest

from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.access import BrokerAccess
from warrenmq.pipeline.source.columns import EVENT_COLUMNS, check_filter_fields, check_names, schema_of
from warrenmq.pipeline.source.offsets import EARLIEST, LATEST, StreamPositions, Timestamp
from warrenmq.pipeline.source.options import OPTIONS, ReadOptions, parse_read_options

URL = "amqp://anna:secret@broker.example/"


def parse(is_streaming: bool | None = None, **options: str) -> ReadOptions:
    """As Spark passes them: names in lower case."""
    given = {"url": URL, "stream": "orders"} | options
    return parse_read_options(
        {name.lower(): value for name, value in given.items() if value != ""}, is_streaming=is_streaming
    )


def test_what_is_given_is_kept() -> None:
    read = parse(
        stream="orders, invoices,orders",
        startingOffsets="earliest",
        maxRecordsPerBatch="100",
        partitions="3",
        failOnDataLoss="FALSE",
        readerName="billing",
        columns="key,offset",
    )
    assert read.streams == ("orders", "invoices")
    assert read.starting == StreamPositions(EARLIEST)
    assert (read.max_records, read.partitions, read.fail_on_data_loss) == (100, 3, False)
    assert (read.reader_name, read.columns) == ("billing", ("key", "offset"))
    assert pickle.loads(pickle.dumps(read)) == read


def test_an_unknown_option_is_reported_with_the_known_ones() -> None:
    with pytest.raises(BadOption) as refused:
        parse(startingOfsets="earliest")
    assert "startingofsets" in str(refused.value)
    assert all(name in str(refused.value) for name in OPTIONS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": ""}, "name what to read"),
        ({"streamPattern": "o.*", "httpUrl": "http://x"}, "name what to read"),
        ({"stream": "", "streamPattern": "o.*"}, "add the option httpUrl"),
        ({"stream": "", "streamPattern": "o(", "httpUrl": "http://x"}, "regular expression"),
        ({"httpUrl": "http://x"}, "streamPattern"),
        ({"queue": "jobs"}, "drain"),
        ({"path": "x"}, "leave load"),
        ({"payload": "xml"}, "raw, json, arrow"),
        ({"payload": "json"}, "schema"),
        ({"payload": "arrow"}, "schema"),
        ({"schema": "id bigint"}, "payload"),
        ({"maxRecordsPerBatch": "0"}, "from 1"),
        ({"partitions": "many"}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "sometime"}, "earliest, latest"),
        ({"startingOffsets": '{"a": -1}'}, "write an offset"),
        ({"startingOffsets": "{"}, "JSON"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "not both"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"retryTimeout": "soon"}, "seconds"),
        ({"url": "http://nowhere"}, "cannot be used"),
        ({"url": ""}, "urlFile"),
        ({"urlEnv": "X"}, "in one way"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption, match=words.replace("(", r"\(")):
        parse(**options)


def test_what_is_for_batches_is_refused_in_streaming_and_the_other_way_round() -> None:
    with pytest.raises(BadOption, match="no end"):
        parse(is_streaming=True, endingOffsets="latest")
    with pytest.raises(BadOption, match="streaming reads"):
        parse(is_streaming=False, maxRecordsPerBatch="5")


def test_positions_are_words_offsets_and_timestamps() -> None:
    positions = parse(startingOffsets='{"a": 7, "b": "latest", "c": "2026-11-16T10:00:00Z"}').starting
    assert positions is not None
    assert [positions.of(stream) for stream in "abcd"] == [7, LATEST, Timestamp(1794823200000), EARLIEST]
    assert parse(startingTimestamp="1794823200000").starting == StreamPositions(Timestamp(1794823200000))
    assert parse(startingOffsets="2026-11-16T11:00:00+01:00").starting == StreamPositions(Timestamp(1794823200000))
    assert parse(endingTimestamp="2026-11-16T10:00:00").ending == StreamPositions(Timestamp(1794823200000))


def test_only_offsets_and_the_earliest_mean_the_same_for_ever() -> None:
    assert StreamPositions(EARLIEST, {"a": 3}).is_fixed
    assert not StreamPositions(EARLIEST, {"a": LATEST}).is_fixed
    assert not StreamPositions(Timestamp(0)).is_fixed


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(parse())
    assert BrokerAccess(url=URL).address() == "broker.example:5672"


def test_the_url_may_be_in_a_file_or_in_the_environment(tmp_path, monkeypatch) -> None:
    (tmp_path / "url").write_text(URL + "\n")
    assert BrokerAccess.of({"urlfile": str(tmp_path / "url")}).resolve() == URL
    monkeypatch.setenv("BROKER_URL", URL)
    assert BrokerAccess.of({"urlenv": "BROKER_URL"}).resolve() == URL
    monkeypatch.delenv("BROKER_URL")
    with pytest.raises(BadOption, match="BROKER_URL"):
        BrokerAccess.of({"urlenv": "BROKER_URL"}).resolve()
    with pytest.raises(BadOption, match="cannot be read"):
        BrokerAccess.of({"urlfile": str(tmp_path / "nothing")}).resolve()


def test_schemas_by_payload() -> None:
    assert schema_of(parse()).startswith(
        "`key` binary, `value` binary, `stream` string, `partition` int, `offset` bigint"
    )
    assert schema_of(parse(columns="offset,key")) == "`offset` bigint, `key` binary"
    assert schema_of(parse(payload="json", schema="id bigint", columns="value")) == "`value` struct<id bigint>"
    assert schema_of(parse(payload="arrow", schema="id bigint")) == "id bigint, `offset` bigint"
    assert schema_of(parse(payload="arrow", schema="id bigint", columns="stream")) == "id bigint, `stream` string"
    log = schema_of(parse(stream="warren.events", payload="arrow"))
    assert log.startswith("`time` timestamp, `kind` tinyint, `uid` bigint")
    assert log.endswith("`kind_name` string, `reason_name` string, `offset` bigint")
    assert schema_of(parse(stream="warren.events", payload="arrow", columns="time,stream")) == (
        "`time` timestamp, `stream` string"
    )


def test_missing_columns_are_reported() -> None:
    with pytest.raises(BadOption, match="topic"):
        schema_of(parse(columns="topic"))
    with pytest.raises(BadOption, match="leave key out"):
        schema_of(parse(payload="arrow", schema="id bigint", columns="key"))
    with pytest.raises(BadOption, match="price"):
        check_names(parse(), ["key", "price"])
    check_names(parse(stream="warren.events", payload="arrow"), list(EVENT_COLUMNS))


def test_a_filter_over_what_is_not_there_is_refused() -> None:
    check_filter_fields(parse(filter="header.tenant = 'a' and priority > 3"))
    check_filter_fields(parse(payload="json", schema="id bigint", filter="value.id > 3"))
    check_filter_fields(parse(stream="warren.events", payload="arrow", filter="queue = 'q' and kind_name = 'acked'"))
    with pytest.raises(BadOption, match="no field 'value"):
        check_filter_fields(parse(filter="value.id > 3"))
    with pytest.raises(BadOption, match="kinds"):
        check_filter_fields(parse(stream="warren.events", payload="arrow", filter="kinds = 3"))
