"""`rolltrace proxy`: records what programs ask a model server."""

import os
import sys
from pathlib import Path

import click

from rolltrace.errors import InputError

_TOKEN = "ROLLTRACE_PROXY_TOKEN"  # noqa: S105 - the name of a variable


@click.command(short_help="Record what programs ask a model server.")
@click.option("--upstream", metavar="URL", required=True, help="The server, such as http://127.0.0.1:8000/v1.")
@click.option("--out", metavar="RUN", type=click.Path(path_type=Path), required=True, help="The run; it may exist.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 is any free one.")
@click.option("--host", default="127.0.0.1", help="The address to listen at.")
@click.option("--token", help=f"What requests must have in X-Rolltrace-Token; by default ${_TOKEN}, or none.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0.1),
    default=600.0,
    show_default=True,
    help="Seconds until a named rollout ends that has no more requests.",
)
def proxy(upstream: str, out: Path, port: int, host: str, token: str | None, idle: float) -> None:
    """Forward requests to a server of the OpenAI API, and record the answers of its models in a run.

    The address that clients use as their base URL is the only line on standard output. A request is a rollout of its
    own, unless the header X-Rolltrace-Rollout, or a path that begins with /rollout/ID, names one. Only this machine can
    reach the proxy; a --host that others can reach needs a token. Keys are passed on and never stored. Ctrl-C ends it.
    """
    import asyncio
    import gc

    from rolltrace.bridges.proxy import RecordingProxy, serve_proxy
    from rolltrace.store.create import create_run
    from rolltrace.store.layout import is_run
    from rolltrace.store.object_address import as_path, is_address
    from rolltrace.viewer.auth import is_loopback

    chosen_token = token or os.environ.get(_TOKEN) or None
    if chosen_token is None and not is_loopback(host):
        raise InputError(
            f"Expected a token for a proxy that others can reach at {host}: set it with --token or in ${_TOKEN}."
        )

    def print_address(address: str) -> None:
        click.echo(address)
        sys.stdout.flush()
        click.echo(f"Forwarding to {upstream} and recording in {as_path(out)}. Ctrl-C ends it.", err=True)

    run_path = as_path(out)
    is_existing = is_run(run_path) if is_address(run_path) else run_path.exists()
    with create_run(run_path, join=is_existing, handle_sigterm=False) as run:
        server = RecordingProxy(upstream, run, idle_seconds=idle, token=chosen_token)
        gc.freeze()  # the modules: to look through them takes 20 ms, in which every request waits
        asyncio.run(serve_proxy(server, host, port, print_address))
    click.echo(f"Recorded {run.ledger.recorded} rollouts in {run_path}.", err=True)
