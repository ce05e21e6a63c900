"""`rolltrace view`: the web viewer over the runs below a directory."""

import os
import sys
from pathlib import Path

import click

from rolltrace.errors import InputError

_TOKEN = "ROLLTRACE_VIEW_TOKEN"  # noqa: S105 - the name of a variable


@click.command(short_help="Look at runs in a browser.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 is any free one.")
@click.option("--host", default="127.0.0.1", help="The address to listen at.")
@click.option("--token", help=f"The secret in the URL, at least 16 characters; by default ${_TOKEN}, or a random one.")
@click.option("--no-open", is_flag=True, help="Open no browser.")
def view(directory: Path, port: int, host: str, token: str | None, no_open: bool) -> None:
    """Serve a viewer of the runs in and below DIR (by default runs/), and open it in a browser.

    The URL, which contains a secret token, is the only line on standard output. Runs that are being written are
    followed. Only this machine can reach the viewer; a --host that others can reach needs a token. Ctrl-C ends it.
    """
    import secrets

    from rolltrace.store.layout import find_object_runs
    from rolltrace.store.object_address import as_path, is_address
    from rolltrace.viewer.auth import check_token, is_loopback
    from rolltrace.viewer.page_files import page_folder
    from rolltrace.viewer.server import listen, serve

    directory = as_path(directory)
    if is_address(directory):
        find_object_runs(directory)  # raises the error for a store that cannot be read
    elif not directory.is_dir():
        raise InputError(
            f"Expected a directory with runs, got {'a file' if directory.exists() else 'nothing'} at {directory}."
        )
    chosen_token = token or os.environ.get(_TOKEN) or None
    if chosen_token is None and not is_loopback(host):
        raise InputError(
            f"Expected a token for a viewer that others can reach at {host}: set it with --token or in ${_TOKEN}."
        )
    if chosen_token is not None:
        check_token(chosen_token)
    page_folder()
    final_token = chosen_token or secrets.token_urlsafe(24)
    listening = listen(host, port)
    url = _url(host, listening.getsockname()[1], final_token)

    def print_url() -> None:
        click.echo(url)
        sys.stdout.flush()
        click.echo(f"Serving the runs below {directory}. Ctrl-C ends it.", err=True)
        if not no_open:
            _open(url)

    serve(directory, listening, token=final_token, host=host, on_ready=print_url)


def _url(host: str, port: int, token: str) -> str:
    from urllib.parse import quote

    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/?token={quote(token, safe='')}"


def _open(url: str) -> None:
    """Open the URL in a browser, if there is a display."""
    import threading
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
