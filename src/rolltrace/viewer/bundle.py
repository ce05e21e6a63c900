"""The page and what it shows as one file, which opens without a server and without a network."""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Callable, Iterable, Iterator

from rolltrace.viewer.page_files import page_folder

_SCRIPT, _STYLE, _ICON = "assets/page.js", "assets/page.css", "icon.svg"
_LEVEL = 6


def report_html(title: str, packs: Iterable[bytes], head: Callable[[], bytes]) -> Iterator[bytes]:
    """The file, piece by piece: the page, packs of JSON that it unpacks when asked, and its head, also JSON.

    The head is asked for when the last pack was written. The policy lets run the page's own script, by its hash, and
    nothing else; the data are blocks that no browser runs.
    """
    folder = page_folder()
    script = _inside_script((folder / _SCRIPT).read_bytes())
    style = (folder / _STYLE).read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode((folder / _ICON).read_bytes()).decode()
    yield f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<title>{html.escape(title)}</title>
<style>""".encode(errors="replace")
    yield style
    yield b"</style>\n</head>\n<body>\n<div id=page></div>\n"
    yield b"<noscript>This report is shown with JavaScript, which is switched off here.</noscript>\n"
    for number, pack in enumerate(packs):
        packed = base64.b64encode(gzip.compress(pack, _LEVEL, mtime=0))
        yield b'<script type="text/plain" id="pack-%d">%b</script>\n' % (number, packed)
    yield b'<script type="application/json" id="report">' + _inside_data(head()) + b"</script>\n"
    yield b'<script type="module">' + script + b"</script>\n</body>\n</html>\n"


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


def _inside_script(script: bytes) -> bytes:
    """A script that cannot end the element around it; in strings, where alone these can stand, it means the same."""
    return re.sub(rb"<(?=/script|!--|script)", rb"\\x3c", script, flags=re.IGNORECASE)


def _inside_data(json: bytes) -> bytes:
    """JSON without any `<`, so that nothing in it ends the element around it."""
    return json.replace(b"<", b"\\u003c")
