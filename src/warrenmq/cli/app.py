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
    log_level: Annotated[str | None, typer.Option(metavar="L", help="debug, info, warning or error. [info]")] = None,
) -> None:
    """Run the broker in the foreground until SIGTERM or Ctrl-C."""
    from warrenmq.cli.serve import serve as run_broker

    flags = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "http_port": http_port,
        "durability": durability,
        "log_level": log_level,
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
