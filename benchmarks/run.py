"""Measures WarrenMQ beside RabbitMQ on this machine, and its client beside others: how many times faster?

    python benchmarks/run.py                    all workloads, medians of 5 interleaved rounds
    python benchmarks/run.py --quick            one short round: does it run, roughly how fast
    python benchmarks/run.py --only 'ack-*'     some workloads (a shell pattern or part of the name)
    python benchmarks/run.py --only 'client-*'  the Python clients alone (client_compare.py)
    python benchmarks/run.py --only tracing     what keeping events costs, alone (tracing.py)
    python benchmarks/run.py --only pipeline    events on Spark, alone (pipeline.py)
    python benchmarks/run.py --list             the workloads and their targets

The table is kept as results/latest.json and results/latest.md (a partial or quick run as results/partial.*).
Ends with 1 when a run had a fault: a message lost, out of order, redelivered; a broker that did not start.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import backlog
import brokers
import client_compare
import disk
import loadgen
import machine
import report
import scale
import tracing
from measure import Contender, Opener, Pace, measure, measure_disk, takes_part
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from workloads import IN_MEMORY, UNCOMPILED, WORKLOADS, Workload

CLIENT_PREFIX = "client-"
TRACING = "tracing"
PIPELINE = "pipeline"
QUICK = Pace(rounds=1, duration=1.0, warmup=0.5, part_of_messages=0.1)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds per workload (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="workloads whose name matches; repeatable")
    parser.add_argument("--list", action="store_true", help="list the workloads and end")
    parser.add_argument(
        "--pure", action="store_true", help="measure uncompiled WarrenMQ in every row, not only in its own"
    )
    parser.add_argument("--no-rabbitmq", action="store_true", help="measure WarrenMQ alone")
    parser.add_argument("--no-clients", action="store_true", help="leave the Python clients out")
    parser.add_argument("--no-tracing", action="store_true", help="leave out what keeping events costs")
    parser.add_argument("--no-pipeline", action="store_true", help="leave Spark out")
    parser.add_argument("--no-warren", action="store_true", help="start no WarrenMQ (with --target or RabbitMQ alone)")
    parser.add_argument(
        "--target", action="append", default=[], metavar="NAME=PORT,PID", help="a further broker that already runs"
    )
    parser.add_argument("--strict", action="store_true", help="end with 2 when a target is missed")
    parser.add_argument(
        "--backlog", action="store_true", help="afterwards measure 10 million messages and 100,000 queues"
    )
    parser.add_argument("--scale", action="store_true", help="afterwards measure many connections, queues and bindings")
    return parser.parse_args(arguments)


def choose_workloads(patterns: list[str] | None) -> list[Workload]:
    """The workloads that the patterns name, in the table's order."""
    return [workload for workload in WORKLOADS if is_named(workload.key, patterns)]


def choose_client_workloads(options: argparse.Namespace) -> list[client_compare.ClientWorkload]:
    """The same for the table of the clients."""
    if options.no_clients or options.no_warren:
        return []
    return [workload for workload in client_compare.WORKLOADS if is_named(CLIENT_PREFIX + workload.key, options.only)]


def is_named(key: str, patterns: list[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatch(key, pattern) or pattern in key for pattern in patterns)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    console = report.wide_console()
    chosen, chosen_clients = choose_workloads(options.only), choose_client_workloads(options)
    if options.list:
        list_workloads(console, chosen, chosen_clients)
        return 0
    traces = is_named(TRACING, options.only) and not (options.no_tracing or options.no_warren)
    pipes = is_named(PIPELINE, options.only) and not (options.no_pipeline or options.no_warren)
    if not (chosen or chosen_clients or traces or pipes):
        console.print(f"no workload matches {' '.join(options.only)}; --list shows them", style="red")
        return 1
    pace = QUICK if options.quick else Pace()
    if options.rounds:
        pace = replace(pace, rounds=max(1, options.rounds))
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # leave through every `with`, so that no broker stays behind
    brokers.raise_file_limit()
    try:
        measured = report.Report(machine.describe(), {}, report.describe_pace(pace), [])
        if chosen:
            loadgen.build()
            measured = run_all(console, options, chosen, pace)
        clients = run_clients(console, chosen_clients, pace) if chosen_clients else None
        traced = tracing.run(console, tracing.QUICK if options.quick else tracing.Pace()) if traces else None
        is_pipeline_slow = pipes and run_pipeline(console, is_quick=options.quick)
    except (brokers.BrokerError, loadgen.BuildError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    show(console, measured)
    if clients is not None:
        client_compare.show(console, clients)
    if traced is not None:
        tracing.show(console, traced)
    missed = is_pipeline_slow or (traced is not None and tracing.misses(traced))
    if not chosen and clients is None:
        return 2 if options.strict and missed else 0
    is_whole = not (options.only or options.quick or options.no_warren)
    name = "latest" if is_whole else "partial"
    report.write(measured, name, client_compare.part_of_report(clients) if clients is not None else None)
    console.print(f"kept as benchmarks/results/{name}.md and {name}.json")
    failed = measured.failed or (clients is not None and clients.failed)
    missed = missed or measured.missed or (clients is not None and clients.missed)
    if options.backlog:
        failed |= backlog.main([]) == 1
    if options.scale:
        failed |= scale.main([]) != 0
    return 1 if failed else 2 if options.strict and missed else 0


def run_pipeline(console: Console, *, is_quick: bool) -> bool:
    """Events on Spark, where that is installed; says whether a target was missed."""
    try:
        import pipeline
    except ModuleNotFoundError as missing:
        console.print(f"no figures of the pipeline: {missing.name} is not installed (pip install 'warrenmq[spark]')")
        return False
    return pipeline.main(["--quick"] if is_quick else []) == 2


def run_all(console: Console, options: argparse.Namespace, chosen: list[Workload], pace: Pace) -> report.Report:
    """Start what is to be compared, measure every workload, end what was started."""
    rows: list[report.Row] = []
    with ExitStack() as stack:
        always, stand_ins = start_contenders(console, options, chosen, stack)
        described = {c.name: report.describe_broker(c.endpoint) for c in [*always, *stand_ins]}
        plan = [(workload, contenders_of(workload, always, stand_ins, options.pure)) for workload in chosen]
        total = sum(
            pace.rounds_of(workload, contender.name)
            for workload, contenders in plan
            for contender in contenders
            if takes_part(workload, contender)
        )
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        task = progress.add_task("", total=total)
        for workload, contenders in plan:

            def show_run(broker: str, title: str = workload.title) -> None:
                progress.update(task, description=f"{title}: {report.LABELS.get(broker, broker)}")

            outcomes = measure(workload, contenders, pace, show_run, partial(progress.advance, task))
            new_rows = report.rows_of(workload, outcomes, measure_disk(workload, pace))
            rows += new_rows
            for line in report.ratio_texts(new_rows):
                progress.console.print(line, markup=False, highlight=False)
    return report.Report(machine.describe(), described, report.describe_pace(pace), rows)


def run_clients(
    console: Console, chosen: list[client_compare.ClientWorkload], pace: Pace
) -> client_compare.ClientReport:
    """The clients' table, on a WarrenMQ that serves nobody else."""
    with brokers.running_warren() as endpoint:
        return client_compare.measure_installed(
            console,
            endpoint,
            chosen,
            client_compare.CLIENTS,
            min(pace.rounds, client_compare.ROUNDS),
            pace.part_of_messages,
        )


def start_contenders(
    console: Console, options: argparse.Namespace, chosen: list[Workload], stack: ExitStack
) -> tuple[list[Contender], list[Contender]]:
    """Those that take part in every row, and the other forms of WarrenMQ that stand in for it where a row wants one."""

    def started(opener: Opener) -> Contender:
        return Contender(stack.enter_context(opener()), opener)

    always: list[Contender] = []
    stand_ins: list[Contender] = []
    if not options.no_warren:
        always.append(started(brokers.running_warren))
        if always[0].endpoint.compiled is False:
            console.print("WarrenMQ runs uncompiled here: its figures are those of plain Python", style="yellow")
        wanted = {workload.ours for workload in chosen}
        if options.pure or UNCOMPILED in wanted:
            stand_ins.append(started(partial(brokers.running_warren, pure=True)))
        if IN_MEMORY in wanted:
            stand_ins.append(started(partial(brokers.running_warren, keeps_data=False)))
    if options.no_rabbitmq:
        console.print("RabbitMQ left out: no ratios")
    elif brokers.find_rabbitmq() is None:
        console.print("RabbitMQ is not installed here (Debian, Ubuntu: apt-get install rabbitmq-server): no ratios")
    else:
        always.append(started(brokers.running_rabbitmq))
    always += [Contender(brokers.attached(definition)) for definition in options.target]
    if not always:
        raise brokers.BrokerError("there is no broker to measure")
    if disk.is_memory() and any(workload.syncs for workload in chosen):
        console.print(
            "the scratch folder is in memory: durable rows mean nothing (TMPDIR chooses another)", style="yellow"
        )
    return always, stand_ins


def contenders_of(
    workload: Workload, always: list[Contender], stand_ins: list[Contender], pure: bool
) -> list[Contender]:
    """Who runs a workload: where a row judges another form of WarrenMQ, that stands in for the usual one."""
    if workload.ours != report.OURS:
        judged = [contender for contender in stand_ins if contender.name == workload.ours]
        return judged + [contender for contender in always if contender.name != report.OURS]
    return always + [contender for contender in stand_ins if pure and contender.name == UNCOMPILED]


def show(console: Console, measured: report.Report) -> None:
    if measured.rows:
        console.print(report.table_of(measured))
    if beside_disk := report.disk_table_of(measured):
        console.print(beside_disk)
        console.print(report.DISK_NOTE, highlight=False)
    if note := report.disturbance(measured):
        console.print(note, style="yellow")
    for line in report.fault_lines(measured):
        console.print(f"FAIL {line}", style="bold red", markup=False)


def list_workloads(
    console: Console, chosen: list[Workload], chosen_clients: list[client_compare.ClientWorkload]
) -> None:
    for workload in chosen:
        targets = ", ".join(filter(None, (report.target_text(figure) for figure in workload.figures)))
        console.print(
            f"{workload.key:20} {workload.title}  {targets}  ({workload.options})", markup=False, highlight=False
        )
    for client_workload in chosen_clients:
        key, target = CLIENT_PREFIX + client_workload.key, f">= {client_workload.target:g} x"
        console.print(f"{key:20} Python clients: {client_workload.title}  {target}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
