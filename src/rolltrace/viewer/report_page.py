"""The HTML file of a report: the page and its data in one file, which needs no server and no network."""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.errors import RolltraceError
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey
from rolltrace.viewer.json_response import to_browser_types
from rolltrace.viewer.media_types import detect_media_type
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.report_data import ReportData, ReportGroup
from rolltrace.viewer.schemas import FindingsResponse

_PACK_BYTES = 500_000
"""The approximate size of a pack as JSON; the page unpacks one at a time."""
_MAX_IMAGE_BYTES = 20_000_000
"""The limit for all images of a report."""
_SCRIPT, _STYLE, _ICON = "assets/page.js", "assets/page.css", "icon.svg"
_GZIP_LEVEL = 6

Json = dict[str, Any]


class ReportPacks:
    """Packs of some groups each, with each text once, and the head that says which pack has which group."""

    def __init__(self, carried: ReportData, whole: Run) -> None:
        self._carried = carried
        self._images = _EmbeddedImages(whole)
        self._rollouts: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def __iter__(self) -> Iterator[bytes]:
        number, size = 0, 0
        groups: dict[str, Json] = {}
        rollouts: dict[str, Json] = {}
        for compared in self._carried.groups():
            name = _name(compared.key)
            groups[name] = reference_messages(compared)
            rollouts |= compared.rollouts
            self._groups[name] = number
            self._rollouts |= dict.fromkeys(compared.rollouts, number)
            for rollout in compared.rollouts.values():
                self._images.gather(rollout["rollout"])
            size += len(msgspec.json.encode(compared.rollouts))
            if size >= _PACK_BYTES:
                yield msgspec.json.encode({"groups": groups, "rollouts": rollouts})
                number, size, groups, rollouts = number + 1, 0, {}, {}
        if groups:
            yield msgspec.json.encode({"groups": groups, "rollouts": rollouts})

    def head(self, findings: FindingsResponse) -> bytes:
        """The JSON that the page reads first. Call this after all packs were made."""
        carried = self._carried
        answers = {
            "run": to_browser_types(carried.run),
            "runs": to_browser_types(carried.runs),
            "findings": to_browser_types(findings),
        }
        return msgspec.json.encode(
            {
                "v": 1,
                "run": carried.name,
                "selection": {"text": carried.text, "marks": carried.part.where is not None},
                "answers": answers,
                "columns": carried.table(),
                "rollouts": self._rollouts,
                "groups": self._groups,
                "images": self._images.addresses,
            }
        )


def reference_messages(compared: ReportGroup) -> Json:
    """The response on a group, with references (rollout id and index) in place of messages that its rollouts have."""
    group = compared.answer["group"]
    places = {
        id_: {msgspec.json.encode(message): place for place, message in enumerate(rollout["rollout"]["messages"])}
        for id_, rollout in compared.rollouts.items()
    }
    members = [
        {**member, "messages": _referred(member["messages"], member["id"], places)} for member in group["members"]
    ]
    first = group["members"][0]["id"] if group["members"] else ""
    shared = _referred(group["shared"], first, places)
    return {**compared.answer, "group": {**group, "members": members, "shared": shared}}


def _referred(shown: list[Json], id_: str, places: Mapping[str, Mapping[bytes, int]]) -> list[Json]:
    known = places.get(id_, {})
    return [_reference(one, id_, known) for one in shown]


def _reference(shown: Json, id_: str, places: Mapping[bytes, int]) -> Json:
    """A reference to the message, or the message itself if it was truncated."""
    place = places.get(msgspec.json.encode(shown["message"]))
    return shown if place is None else {**shown, "message": [id_, place]}


def _name(key: GroupKey) -> str:
    """The name of a group as the page makes it with JSON.stringify."""
    return msgspec.json.encode(msgspec.structs.astuple(key)).decode()


class _EmbeddedImages:
    """Images of messages as data URLs, up to a limit."""

    def __init__(self, run: Run) -> None:
        self.addresses: dict[str, str] = {}
        self._run = run
        self._left = _MAX_IMAGE_BYTES

    def gather(self, rollout: Json) -> None:
        """Add the images of a rollout's messages."""
        for message in rollout["messages"]:
            for part in message.get("parts", ()):
                name = part.get("blob")
                if isinstance(name, str) and name not in self.addresses:
                    self._add(name)

    def _add(self, name: str) -> None:
        try:
            data = self._run.blob(name)
        except RolltraceError:
            return
        shown = detect_media_type(data)
        if not shown.is_attachment and len(data) <= self._left:
            self._left -= len(data)
            self.addresses[name] = f"data:{shown.media_type};base64,{base64.b64encode(data).decode()}"


def report_html(title: str, packs: Iterable[bytes], head: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the file in pieces: the page, the packs of JSON, and the head, which is JSON too.

    `head` is called after the last pack. The content security policy allows only the page's own script, by its hash;
    the data are in script elements of types that browsers do not run.
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
        packed = base64.b64encode(gzip.compress(pack, _GZIP_LEVEL, mtime=0))
        yield b'<script type="text/plain" id="pack-%d">%b</script>\n' % (number, packed)
    yield b'<script type="application/json" id="report">' + _inside_data(head()) + b"</script>\n"
    yield b'<script type="module">' + script + b"</script>\n</body>\n</html>\n"


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


def _inside_script(script: bytes) -> bytes:
    """Escape text that would end the script element; it occurs in strings only, where the escape means the same."""
    return re.sub(rb"<(?=/script|!--|script)", rb"\\x3c", script, flags=re.IGNORECASE)


def _inside_data(json: bytes) -> bytes:
    """JSON without any `<`, so that it cannot end the script element."""
    return json.replace(b"<", b"\\u003c")
