"""The command line: which commands there are, and what their flags are called.

A flag's value is checked where the same key of the file and of the environment is: in `warrenmq.config`.
"""

from __future__ import annotations

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
    rich_markup_mode=None,  # errors are single plain lines, for people and for logs
)


def main() -> None:
    app()


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
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
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Read settings from this TOML file.")] = None,
    data_dir: Annotated[str | None, typer.Option(metavar="DIR", help='Keep data here ("none": keep nothing).')] = None,
    host: Annotated[str | None, typer.Option(metavar="H", help="Listen on this address. [127.0.0.1]")] = None,
    port: Annotated[str | None, typer.Option(metavar="PORT", help="Listen for AMQP on this port. [5672]")] = None,
    http_port: Annotated[
        str | None, typer.Option(metavar="PORT", help='Listen for HTTP on this port, or "off". [15672]')
    ] = None,
    durability: Annotated[
        str | None, typer.Option(metavar="D", help='What a confirm means: fsync, "interval=MS" or os. [fsync]')
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="T", help="Keep the events of messages: off, all, or a share such as 0.01. [off]"),
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse a data folder that other users may write to.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="L", help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="F", help="text or json, a line each. [text]")] = None,
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The data folder of a broker that does not run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Verify a data folder and say what is in it; changes nothing.

    Exits with 0 if nothing is damaged, 1 if something is, 2 if the folder cannot be read.
    """
    from warrenmq.cli.check import check as check_data

    raise typer.Exit(check_data(folder, as_json))


@app.command()
def trace(
    message_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The message-id, or the id that the broker gave.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Messages with this correlation-id.")] = None,
    trace_id: Annotated[str | None, typer.Option(metavar="HEX", help="Messages of this trace, or traceparent.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="Q", help="Messages that came to this queue.")] = None,
    exchange: Annotated[str | None, typer.Option(metavar="E", help="Messages published to this exchange.")] = None,
    routing_key: Annotated[str | None, typer.Option(metavar="K", help="Messages with this routing key.")] = None,
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Messages in this virtual host.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Messages with such an event: acked, ...")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="From then on; 15m: so long ago.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="Up to this time.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="List at most so many. [50]")] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="The HTTP port of the broker.")] = "http://127.0.0.1:15672",
    user: Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="A user of the broker.")] = "guest:guest",
    as_json: Annotated[bool, typer.Option("--json", help="Print what the broker answers, as JSON.")] = False,
) -> None:
    """Tell what happened to a message, or find messages; the broker must run and keep events.

    Exits with 0 if there is something to tell, 1 if nothing is kept, 2 if the broker cannot be asked.
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
    wanted = {name: str(value) for name, value in options.items() if value is not None}
    raise typer.Exit(run_trace(message_id, wanted, url, user, as_json))


policy_app = typer.Typer(
    name="policy",
    help="Set, list and clear policies of a running broker: options for queues and exchanges by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy_app)

Vhost = Annotated[str, typer.Option(metavar="V", help="The virtual host.")]
IsOperator = Annotated[bool, typer.Option("--operator", help="An operator policy, which bounds what users set.")]
Url = Annotated[str, typer.Option(metavar="URL", help="The HTTP port of the broker.")]
User = Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="A user of the broker.")]


@policy_app.command("set")
def set_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the policy.")],
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression for names, such as '^logs'.")],
    definition: Annotated[str, typer.Argument(metavar="DEFINITION", help="JSON, such as '{\"max-length\": 1000}'.")],
    vhost: Vhost = "/",
    priority: Annotated[int, typer.Option(metavar="N", help="Of several that match, the highest applies.")] = 0,
    apply_to: Annotated[
        str,
        typer.Option(metavar="A", help="queues, classic_queues, quorum_queues, streams, exchanges or all."),
    ] = "all",
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
) -> None:
    """Set a policy, in place of one of the same name. It applies at once.

    Exits with 0 if it is set, 1 if it is refused, 2 if the broker cannot be asked.
    """
    from warrenmq.cli.policy import set_policy as put

    raise typer.Exit(put(name, pattern, definition, vhost, priority, apply_to, operator, url, user))


@policy_app.command("list")
def list_policies(
    vhost: Annotated[str | None, typer.Option(metavar="V", help="Only those of this virtual host.")] = None,
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
    as_json: Annotated[bool, typer.Option("--json", help="Print what the broker answers, as JSON.")] = False,
) -> None:
    """List policies, the highest priority first.

    Exits with 0, or 2 if the broker cannot be asked.
    """
    from warrenmq.cli.policy import list_policies as show

    raise typer.Exit(show(vhost, operator, url, user, as_json))


@policy_app.command("clear")
def clear_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the policy.")],
    vhost: Vhost = "/",
    operator: IsOperator = False,
    url: Url = "http://127.0.0.1:15672",
    user: User = "guest:guest",
) -> None:
    """Remove a policy. It applies no more from now on.

    Exits with 0 if it is removed, 1 if there is none, 2 if the broker cannot be asked.
    """
    from warrenmq.cli.policy import clear_policy as delete

    raise typer.Exit(delete(name, vhost, operator, url, user))


@app.command()
def analyze(
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="From then on; 15m: so long ago.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="Up to this time. [now]")] = None,
    last: Annotated[str | None, typer.Option(metavar="D", help="The last 15m, 1h, 7d before the end. [1h]")] = None,
    window: Annotated[str, typer.Option(metavar="D", help="Answers are given for windows of this length.")] = "10s",
    jobs: Annotated[str | None, typer.Option(metavar="A,B", help="Only these jobs: throughput,latency,...")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on for as long as events come.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --follow: end when all that is there has been read.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --follow: what it goes on with after a restart.")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option(metavar="D", help="With --follow: how often to look for events. [1s]")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report: one HTML file.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the answers as Parquet.")] = None,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Write the answers to the stream warren.analysis, or not.")
    ] = True,
    master: Annotated[
        str, typer.Option(metavar="M", help="The Spark master: local[*], spark://host:7077.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be given several times.")
    ] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="The AMQP port of the broker.")] = "amqp://127.0.0.1:5672",
    user: Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="A user of the broker.")] = "guest:guest",
) -> None:
    """Analyse the events of a broker with Spark: rates, times, backlogs, failures, hot keys, anomalies.

    Over a range of time, or on and on with --follow. The answers go to a stream of the broker, whose pages show them.
    Exits with 0 if there are answers, 1 if there are no events, 2 if it could not be done.
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
