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
from rolltrace.query.message_truncation import TruncatedMessage
from rolltrace.query.run import Run
from rolltrace.trace.message import Message
from rolltrace.trace.score import GroupKey
from rolltrace.viewer.json_response import encode_response, to_browser_types
from rolltrace.viewer.media_types import detect_image_type
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.report_data import ReportData, ReportRollout, fields_without
from rolltrace.viewer.rollout_schemas import GroupResponse
from rolltrace.viewer.run_subset import Progress
from rolltrace.viewer.schemas import FindingsResponse

_PACK_BYTES = 500_000
"""The approximate size of a pack as JSON; the page unpacks one at a time."""
_MAX_IMAGE_BYTES = 20_000_000
"""The limit for all images of a report."""
_SCRIPT, _STYLE, _ICON = "assets/page.js", "assets/page.css", "icon.svg"
_GZIP_LEVEL = 6

Json = dict[str, Any]


class ReportBlocks:
    """The data of a report: blocks of JSON under their names, and the head, which says what is in which block."""

    def __init__(self, data: ReportData, whole: Run, on_progress: Progress) -> None:
        self._data = data
        self._on_progress = on_progress
        self._images = _EmbeddedImages(whole)
        self._rollouts: dict[str, int] = {}
        """By id, the number of the pack that holds it."""
        self._groups: dict[str, int] = {}
        self._questions: list[Json] = []
        """What the answers in the block `statistics` are about, in the same order."""

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        yield from self._packs()
        yield "table", msgspec.json.encode(self._data.table())
        answers = []
        for stored in self._data.statistics():
            self._questions.append({"question": stored.question, "parameters": stored.parameters})
            answers.append(stored.answer)
        yield "statistics", msgspec.json.encode(answers)

    def head(self, findings: FindingsResponse) -> bytes:
        """The JSON that the page reads first. Call this after all blocks were made."""
        data = self._data
        answers = {"run": data.run, "runs": data.runs, "findings": findings}
        return msgspec.json.encode(
            {
                "run": data.name,
                "selection": {"text": data.text, "marks": data.part.where is not None},
                "answers": {name: to_browser_types(answer) for name, answer in answers.items()},
                "statistics": self._questions,
                "rollouts": self._rollouts,
                "groups": self._groups,
                "images": self._images.addresses,
            }
        )

    def _packs(self) -> Iterator[tuple[str, bytes]]:
        """Packs of some rollouts and groups each, with each text once."""
        pack = _Pack(0)
        for group in self._data.groups():
            key, references = _group_key(group.key), _GroupReferences(group.answer)
            for rollout in group.rollouts:
                pack.rollouts[rollout.id] = msgspec.Raw(rollout.json)
                self._rollouts[rollout.id] = pack.number
                self._images.gather(rollout.messages)
                references.resolve(rollout)
                self._on_progress(len(self._rollouts), len(self._data.written.ids), "writing")
                pack.size += len(rollout.json)
                if pack.size >= _PACK_BYTES:
                    yield pack.block()
                    pack = _Pack(pack.number + 1)
            pack.groups[key] = references.response()
            self._groups[key] = pack.number
        yield pack.block()


class _Pack:
    """Some rollouts and groups, which the page unpacks together."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.groups: dict[str, Json] = {}
        self.rollouts: dict[str, msgspec.Raw] = {}
        self.size = 0

    def block(self) -> tuple[str, bytes]:
        """Its name and its JSON."""
        return f"pack-{self.number}", encode_response({"groups": self.groups, "rollouts": self.rollouts})


class _GroupReferences:
    """The response on a group, with references (rollout id and index) in place of messages that its rollouts have."""

    def __init__(self, answer: GroupResponse) -> None:
        self._answer = answer
        self._members = {member.id: member for member in answer.group.members}
        self._messages: dict[str, list[Json]] = {}
        self._shared: list[Json] = []

    def resolve(self, rollout: ReportRollout) -> None:
        """Refer to the messages of a rollout; a message that was truncated stays."""
        if (member := self._members.get(rollout.id)) is None:
            return
        indices = {message: index for index, message in enumerate(rollout.messages)}
        self._messages[rollout.id] = _references(member.messages, rollout.id, indices)
        if member is self._answer.group.members[0]:
            self._shared = _references(self._answer.group.shared, rollout.id, indices)

    def response(self) -> Json:
        """The response, after all its rollouts were resolved."""
        comparison = self._answer.group
        members = [
            {**fields_without(member, "messages"), "messages": self._messages.get(member.id, [])}
            for member in comparison.members
        ]
        fields = {**fields_without(comparison, "members", "shared"), "members": members, "shared": self._shared}
        return {**fields_without(self._answer, "group"), "group": fields}


def _references(excerpts: Iterable[TruncatedMessage], id_: str, indices: Mapping[Message, int]) -> list[Json]:
    """The excerpts with references to messages of a rollout."""
    return [
        {
            **fields_without(excerpt, "message"),
            "message": [id_, indices[excerpt.message]] if excerpt.message in indices else excerpt.message,
        }
        for excerpt in excerpts
    ]


def _group_key(key: GroupKey) -> str:
    """The key of a group as the page makes it with JSON.stringify."""
    return msgspec.json.encode(msgspec.structs.astuple(key)).decode()


class _EmbeddedImages:
    """Images of messages as data URLs, up to a limit."""

    def __init__(self, run: Run) -> None:
        self.addresses: dict[str, str] = {}
        self._run = run
        self._left = _MAX_IMAGE_BYTES

    def gather(self, messages: Iterable[Message]) -> None:
        """Add the images of some messages."""
        for part in (part for message in messages for part in message.parts):
            if part.blob is not None and part.blob.name not in self.addresses:
                self._add(part.blob.name)

    def _add(self, name: str) -> None:
        try:
            data = self._run.blob(name)
        except RolltraceError:
            return
        image_type = detect_image_type(data)
        if image_type is not None and len(data) <= self._left:
            self._left -= len(data)
            self.addresses[name] = f"data:{image_type};base64,{base64.b64encode(data).decode()}"


def report_html(title: str, blocks: Iterable[tuple[str, bytes]], head: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the file in pieces: the page, blocks of JSON under their names, and the head, which is JSON too.

    `head` is called after the last block. The content security policy allows only the page's own script, by its hash;
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
    for name, data in blocks:
        packed = base64.b64encode(gzip.compress(data, _GZIP_LEVEL, mtime=0))
        yield b'<script type="text/plain" id="%b">%b</script>\n' % (name.encode(), packed)
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
