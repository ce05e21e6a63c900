"""The answers of a report as its page unpacks them: some groups at a time, each text once."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.errors import RolltraceError
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey
from rolltrace.viewer.json_response import to_json_value
from rolltrace.viewer.media_types import detect_media_type
from rolltrace.viewer.report_data import ReportData, ReportGroup
from rolltrace.viewer.schemas import FindingsResponse

_PACK = 500_000
"""About how many bytes of JSON the page unpacks at once."""
_IMAGES = 20_000_000
"""How many bytes of images a report carries at most."""

Json = dict[str, Any]


class ReportPacks:
    """Packs of groups, and the head that knows in which pack each is."""

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
            if size >= _PACK:
                yield msgspec.json.encode({"groups": groups, "rollouts": rollouts})
                number, size, groups, rollouts = number + 1, 0, {}, {}
        if groups:
            yield msgspec.json.encode({"groups": groups, "rollouts": rollouts})

    def head(self, findings: FindingsResponse) -> bytes:
        """What the page reads first; all packs were made before."""
        carried = self._carried
        answers = {
            "run": to_json_value(carried.run),
            "runs": to_json_value(carried.runs),
            "findings": to_json_value(findings),
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
    """The answer on a group, its messages as references to those of its rollouts: id and place."""
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
    """Only what is shown whole is found again; what was cut stays as it is."""
    place = places.get(msgspec.json.encode(shown["message"]))
    return shown if place is None else {**shown, "message": [id_, place]}


def _name(key: GroupKey) -> str:
    """A group's name as the page makes it, by JSON.stringify."""
    return msgspec.json.encode([key.split, key.iteration, key.env, key.group]).decode()


class _EmbeddedImages:
    """Images that messages carry, as addresses that hold them, up to a bound."""

    def __init__(self, run: Run) -> None:
        self.addresses: dict[str, str] = {}
        self._run = run
        self._left = _IMAGES

    def gather(self, rollout: Json) -> None:
        """Take the images of a rollout's messages."""
        for message in rollout["messages"]:
            for part in message.get("parts", ()):
                name = part.get("blob")
                if isinstance(name, str) and name not in self.addresses:
                    self._take(name)

    def _take(self, name: str) -> None:
        try:
            data = self._run.blob(name)
        except RolltraceError:
            return
        shown = detect_media_type(data)
        if not shown.is_attachment and len(data) <= self._left:
            self._left -= len(data)
            self.addresses[name] = f"data:{shown.media_type};base64,{base64.b64encode(data).decode()}"
