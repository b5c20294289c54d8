"""The command line: commands and their flags.

Flags of `serve` are checked in `warrenmq.config`, like the same keys from the file and the environment.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import warrenmq

app = typer.Typer(
    name="warren",
    help="WarrenMQ: a fast message broker that every RabbitMQ client can use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors are single plain lines
)


def main() -> None:
    app()


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"WarrenMQ {warrenmq.__version__}")
        raise typer.Exit


@app.callback()
def warren(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """WarrenMQ: a fast message broker that every RabbitMQ client can use."""


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help='Data folder, or "none" to keep nothing on disk.')
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="H", help="Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[str | None, typer.Option(metavar="PORT", help="AMQP port. [5672]")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help='HTTP port, or "off". [15672]')] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="D", help='When a publish is confirmed: fsync, "interval=MS" or os. [fsync]')
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="T", help="Record events of messages: off, all, or a share such as 0.01. [off]"),
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse a data folder that other users can write to.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="L", help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="F", help="text or json, one line per record. [text]")
    ] = None,
) -> None:
    """Run the broker in the foreground until SIGTERM or Ctrl-C."""
    from warrenmq.cli.serve import serve as run_broker

    flags = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "http_port": http_port,
        "durability": durability,
        "trace": trace,
        "strict": strict,
        "log_level": log_level,
        "log_format": log_format,
    }
    raise typer.Exit(run_broker(flags, config))


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Data folder of a stopped broker.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a data folder for damage and list its contents; changes nothing.

    Exit codes: 0 no damage, 1 damage found, 2 the folder cannot be read.
    """
    from warrenmq.cli.check import check as check_data

    raise typer.Exit(check_data(folder, as_json))


@app.command()
def trace(
    message_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Message-id, or the uid that the broker assigned.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Messages with this correlation-id.")] = None,
    trace_id: Annotated[
        str | None, typer.Option(metavar="HEX", help="Messages of this trace id or traceparent.")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="Q", help="Messages that were in this queue.")] = None,
    exchange: Annotated[str | None, typer.Option(metavar="E", help="Messages published to this exchange.")] = None,
    routing_key: Annotated[str | None, typer.Option(metavar="K", help="Messages with this routing key.")] = None,
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Messages in this virtual host.")] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Messages with this event: acked, expired, ...")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Start of the time range, or its age: 15m.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="End of the time range.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number of messages. [50]")] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="URL of the broker's HTTP port.")] = "http://127.0.0.1:15672",
    user: Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="User of the broker.")] = "guest:guest",
    as_json: Annotated[bool, typer.Option("--json", help="Print the broker's response as JSON.")] = False,
) -> None:
    """Show the events of a message, or find messages. Needs a running broker with tracing.

    Exit codes: 0 found, 1 no events recorded, 2 the request failed.
    """
    from warrenmq.cli.trace import trace as run_trace

    options = {
        "correlation_id": correlation_id,
        "trace_id": trace_id,
        "queue": queue,
        "exchange": exchange,
        "routing_key": routing_key,
        "vhost": vhost,
        "kind": kind,
        "from": start,
        "to": end,
        "limit": limit,
    }
    parameters = {name: str(value) for name, value in options.items() if value is not None}
    raise typer.Exit(run_trace(message_id, parameters, url, user, as_json))


policy_app = typer.Typer(
    name="policy",
    help="Set, list and clear policies: options for queues and exchanges by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy_app)

Vhost = Annotated[str, typer.Option(metavar="V", help="Virtual host.")]
IsOperator = Annotated[bool, typer.Option("--operator", help="Use operator policies, which limit those of users.")]
Url = Annotated[str, typer.Option(metavar="URL", help="URL of the broker's HTTP port.")]
User = Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="User of the broker.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the broker's response as JSON.")]


class BodyForm(StrEnum):
    """How the bodies of messages are printed."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


Body = Annotated[BodyForm, typer.Option(metavar="F", help="Form of bodies: auto, text, json or hex.")]
Truncate = Annotated[int, typer.Option(metavar="N", help="Show at most this many bytes of each body.")]
ScheduledId = Annotated[int, typer.Argument(metavar="ID", help="Id in `warren scheduled list`.", min=0)]


@policy_app.command("set")
def set_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Regular expression for names, such as '^logs'.")],
    definition: Annotated[
        str, typer.Argument(metavar="DEFINITION", help="Options as JSON, such as '{\"max-length\": 1000}'.")
    ],
    vhost: Vhost = "/",
    priority: Annotated[
        int, typer.Option(metavar="N", help="If several policies match, the highest priority applies.")
    ] = 0,
    apply_to: Annotated[
        str,
        typer.Option(metavar="A", help="queues, classic_queues, quorum_queues, streams, exchanges or all."),
    ] = "all",
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
) -> None:
    """Set a policy, or replace the one of that name. It applies at once.

    Exit codes: 0 set, 1 refused by the broker, 2 the request failed.
    """
    from warrenmq.cli.policy import set_policy as put

    raise typer.Exit(put(name, pattern, definition, vhost, priority, apply_to, operator, url, user))


@policy_app.command("list")
def list_policies(
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Only policies of this virtual host.")] = None,
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: Annotated[bool, typer.Option("--json", help="Print the broker's response as JSON.")] = False,
) -> None:
    """List policies, the highest priority first.

    Exit codes: 0 listed, 2 the request failed.
    """
    from warrenmq.cli.policy import list_policies as show

    raise typer.Exit(show(vhost, operator, url, user, as_json))


@policy_app.command("clear")
def clear_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    vhost: Vhost = "/",
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
) -> None:
    """Remove a policy. It stops applying at once.

    Exit codes: 0 removed, 1 no such policy, 2 the request failed.
    """
    from warrenmq.cli.policy import clear_policy as delete

    raise typer.Exit(delete(name, vhost, operator, url, user))


@app.command()
def queues(
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Only queues of this virtual host.")] = None,
    count: Annotated[
        int, typer.Option(metavar="N", help="List at most N queues, those with the most messages.", min=1)
    ] = 200,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: AsJson = False,
) -> None:
    """List queues with their messages and consumers.

    Exit codes: 0 listed, 1 refused by the broker, 2 the request failed.
    """
    from warrenmq.cli.queues import list_queues

    raise typer.Exit(list_queues(vhost, count, url, user, as_json))


@app.command()
def peek(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue or stream.")],
    vhost: Vhost = "/",
    start: Annotated[
        str | None, typer.Option("--from", metavar="P", help="Position of the first message; of a stream, its offset.")
    ] = None,
    count: Annotated[int, typer.Option(metavar="N", help="Maximum number of messages, up to 1000.")] = 10,
    retrying: Annotated[
        bool, typer.Option("--retrying", help="Show the messages that wait for their next attempt.")
    ] = False,
    body: Body = BodyForm.AUTO,
    truncate: Truncate = 1000,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: AsJson = False,
) -> None:
    """Show the messages that wait in a queue, without consuming them or changing anything.

    Exit codes: 0 shown, 1 refused by the broker, 2 the request failed.
    """
    from warrenmq.cli.queues import peek as show

    raise typer.Exit(show(queue, vhost, start, count, retrying, body, truncate, url, user, as_json))


scheduled_app = typer.Typer(
    name="scheduled",
    help="List, show and cancel messages that wait for their time of delivery.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(scheduled_app)


@scheduled_app.command("list")
def list_scheduled(
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Only messages of this virtual host.")] = None,
    count: Annotated[int, typer.Option(metavar="N", help="Maximum number of messages, up to 1000.")] = 20,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: AsJson = False,
) -> None:
    """List scheduled messages, the next one first.

    Exit codes: 0 listed, 1 refused by the broker, 2 the request failed.
    """
    from warrenmq.cli.scheduled import list_scheduled as show

    raise typer.Exit(show(vhost, count, url, user, as_json))


@scheduled_app.command("show")
def show_scheduled(
    id: ScheduledId,
    vhost: Vhost = "/",
    body: Body = BodyForm.AUTO,
    truncate: Truncate = 1000,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: AsJson = False,
) -> None:
    """Show a scheduled message with its body.

    Exit codes: 0 shown, 1 no such message, 2 the request failed.
    """
    from warrenmq.cli.scheduled import show_scheduled as show

    raise typer.Exit(show(id, vhost, body, truncate, url, user, as_json))


@scheduled_app.command("cancel")
def cancel_scheduled(
    id: ScheduledId,
    vhost: Vhost = "/",
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
) -> None:
    """Cancel a scheduled message. It is removed and never delivered.

    Exit codes: 0 cancelled, 1 no such message, 2 the request failed.
    """
    from warrenmq.cli.scheduled import cancel_scheduled as cancel

    raise typer.Exit(cancel(id, vhost, url, user))


@app.command()
def analyze(
    start: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Start of the time range, or its age: 15m.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="End of the time range. [now]")] = None,
    last: Annotated[
        str | None, typer.Option(metavar="D", help="Length of the time range before its end: 15m, 1h, 7d. [1h]")
    ] = None,
    window: Annotated[str, typer.Option(metavar="D", help="Length of the windows of the results.")] = "10s",
    jobs: Annotated[str | None, typer.Option(metavar="A,B", help="Only these jobs: throughput,latency,...")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep running and analyze new events.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --follow: exit when all events have been read.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --follow: state for continuing after a restart.")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option(metavar="D", help="With --follow: interval of micro-batches. [1s]")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report to this HTML file.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the results as Parquet.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Publish the results to the stream warren.analysis.")
    ] = True,
    master: Annotated[
        str | None,
        typer.Option(metavar="M", help="Spark master: local[*], spark://host:7077. [local[*], for many events]"),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting; may be repeated.")] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="URL of the broker's AMQP port.")] = "amqp://127.0.0.1:5672",
    user: Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="User of the broker.")] = "guest:guest",
) -> None:
    """Analyze the events of a broker with Spark: rates, latencies, backlogs, failures, hot keys, anomalies.

    Analyzes a time range, or new events continuously with --follow. Results are published to a stream of the broker,
    and shown on its Analysis page.

    Exit codes: 0 results written, 1 no events, 2 failed.
    """
    from warrenmq.cli.analyze import AnalyzeOptions
    from warrenmq.cli.analyze import analyze as run_analysis

    wanted = AnalyzeOptions(
        url=url,
        user=user,
        start=start,
        end=end,
        last=last,
        window=window,
        jobs=jobs,
        master=master,
        follow=follow,
        once=once,
        checkpoint=checkpoint,
        trigger=trigger,
        report=report,
        output=output,
        publish=publish,
        conf=tuple(conf or ()),
    )
    raise typer.Exit(run_analysis(wanted))
