"""The cost of recording a rollout, against encoding its messages once, and against copying its prompt every turn."""

import copy
import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import measure
import msgspec

from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.trace.convert import as_message
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.stop_reasons import Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Usage

TURNS = (1, 10, 25, 50, 100)
ASSISTANT_WORDS = 100
TOOL_WORDS = 150
REWARD_DATA = {"correct": 1.0, "format": 0.9, "length": 0.25}
HEADER_FIELDS: dict[str, Any] = {"env": "tools", "task": "17", "group": "17", "iteration": 4, "policy_version": 12}

Chat = list[dict[str, Any]]
Text = measure.MarkovText | measure.ReferenceText


class ChatWorkload(NamedTuple):
    """One rollout to be recorded: the initial messages, then those that each turn adds."""

    start: Chat
    turns: list[Chat]
    """By turn, what the assistant says and what the tool answers."""

    def fresh(self) -> "ChatWorkload":
        """A copy that shares nothing, so that no variant profits from what another has cached."""
        return copy.deepcopy(self)


class ConvertedWorkload(NamedTuple):
    """The same conversation with messages that were frozen when they arrived."""

    start: list[Message]
    turns: list[list[Message]]


def make_conversation(prose: Text, turns: int) -> ChatWorkload:
    """The tool-use workload."""
    start = [
        {"role": "system", "content": prose.words(TOOL_WORDS)},
        {"role": "user", "content": prose.words(ASSISTANT_WORDS)},
    ]
    return ChatWorkload(start, [_turn(prose, number) for number in range(turns)])


def _turn(prose: Text, number: int) -> Chat:
    call = {"name": "search", "arguments": json.dumps({"query": prose.words(8), "page": number})}
    said = {"role": "assistant", "content": prose.words(ASSISTANT_WORDS)}
    said["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": call}]
    return [said, {"role": "tool", "content": prose.words(TOOL_WORDS), "tool_call_id": f"call_{number}"}]


def convert_workload(conversation: ChatWorkload) -> ConvertedWorkload:
    """Every message as a record."""
    convert: Callable[[Chat], list[Message]] = lambda chat: [as_message(message, "", []) for message in chat]  # noqa: E731
    return ConvertedWorkload(convert(conversation.start), [convert(turn) for turn in conversation.turns])


# The variants: each records the conversations it is given, and returns when all is written


def record_deep_copies(conversations: Sequence[ChatWorkload], folder: Path) -> None:
    """Deep-copies the prompt every turn and dumps one line of JSON."""
    with (folder / "naive.jsonl").open("w") as file:
        for start, turns in conversations:
            history, steps = list(start), []
            for said, answered in turns:
                steps.append({"prompt": copy.deepcopy(history), "response": copy.deepcopy(said), "reward": 1.0})
                history += [said, answered]
            file.write(json.dumps({"steps": steps}) + "\n")


def record_floor(conversations: Sequence[ConvertedWorkload], folder: Path) -> None:
    """Encodes each message once and writes the bytes, nothing else."""
    encode = msgspec.json.Encoder().encode
    with (folder / "floor.jsonl").open("wb", buffering=0) as file:
        for start, turns in conversations:
            pieces = [encode(message) for message in start]
            for turn in turns:
                pieces += [encode(message) for message in turn]
            file.write(b",".join(pieces) + b"\n")


def record_with_builder(conversations: Sequence[ConvertedWorkload], run: RunWriter) -> None:
    """Records as the runner does."""
    for index, (start, turns) in enumerate(conversations):
        rollout_builder = run.begin(_header(run, index))
        rollout_builder.extend(start)
        for said, answered in turns:
            rollout_builder.mark_prompt_sent()
            _add_step(rollout_builder, said)
            rollout_builder.extend([answered])
        run.end(rollout_builder, _outcome(len(turns)))
    run.flush()


def record_dicts(conversations: Sequence[ChatWorkload], run: RunWriter) -> None:
    """Records as the runner does, with dicts that are converted on the way in."""
    for index, (start, turns) in enumerate(conversations):
        rollout_builder = run.begin(_header(run, index))
        rollout_builder.extend([as_message(message, "messages", rollout_builder.notes) for message in start])
        for said, answered in turns:
            rollout_builder.mark_prompt_sent()
            _add_step(rollout_builder, as_message(said, "response", rollout_builder.notes))
            rollout_builder.extend([as_message(answered, "messages", rollout_builder.notes)])
        run.end(rollout_builder, _outcome(len(turns)))
    run.flush()


def record_with_recorder(conversations: Sequence[ChatWorkload], run: RunWriter) -> list[float]:
    """Records as a foreign loop does: the whole history as dicts at every step. Returns the wait for each step."""
    waits = []
    clock = time.perf_counter
    for index, (start, turns) in enumerate(conversations):
        history = list(start)
        with run.rollout(**HEADER_FIELDS, index=index) as recorder:
            for said, answered in turns:
                started = clock()
                recorder.step(prompt=history, response=said, reward=1.0, reward_data=REWARD_DATA)
                waits.append(clock() - started)
                history += [said, answered]
            recorder.observe(history)
    run.flush()
    return waits


def record_appending(conversations: Sequence[ChatWorkload], run: RunWriter) -> None:
    """Records as a loop that only adds messages does: new messages as dicts at every step."""
    for index, (start, turns) in enumerate(conversations):
        with run.rollout(**HEADER_FIELDS, index=index) as recorder:
            recorder.append(start)
            for said, answered in turns:
                recorder.step(response=said, reward=1.0, reward_data=REWARD_DATA)
                recorder.append(answered)
    run.flush()


def _header(run: RunWriter, index: int) -> Header:
    return Header(
        id=new_id(),
        run=run.run,
        session=run.session,
        index=index,
        policy="policy",
        started_at=datetime.now(UTC),
        **HEADER_FIELDS,
    )


def _add_step(rollout_builder: Any, said: Message) -> None:
    rollout_builder.step(
        said, reward=1.0, env_reward=1.0, reward_data=REWARD_DATA, termination=Termination.TOOL_CALLS,
        policy_version=12, usage=Usage(1000, 130), seconds=0.41,
    )  # fmt: skip


def _outcome(turns: int) -> Outcome:
    return Outcome(
        ended_at=datetime.now(UTC), status=Status.OK, stop_reason=StopReason.COMPLETED, stopped_by=StoppedBy.ENV,
        error=None, reward=float(turns), reward_so_far=float(turns), unclamped_reward=None,
    )  # fmt: skip


# Measuring

Record = Callable[[Sequence[Any], RunWriter], Any]
RECORDED: dict[str, tuple[str, bool, Record]] = {
    "off": ("off", True, record_with_builder),
    "numbers": ("numbers", True, record_with_builder),
    "full": ("full", True, record_with_builder),
    "dicts": ("full", False, record_dicts),
    "recorder": ("full", False, record_with_recorder),
    "append": ("full", False, record_appending),
}
"""By variant, the level, whether it takes frozen messages, and how it records."""
VARIANTS = ("naive", "floor", *RECORDED)


class Sample(NamedTuple):
    """One variant in one round, for one rollout."""

    cpu: float
    size: float
    """Bytes on disk."""


def sample(variant: str, conversations: Sequence[ChatWorkload]) -> Sample:
    """Record the conversations in a fresh folder."""
    given = [conversation.fresh() for conversation in conversations]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if variant in RECORDED:
            level, takes_frozen, record = RECORDED[variant]
            messages: list[Any] = [convert_workload(one) for one in given] if takes_frozen else given
            with create_run(folder / "run", trace=level) as run:
                cpu = _cpu(lambda: record(messages, run))
        elif variant == "floor":
            messages = [convert_workload(one) for one in given]
            cpu = _cpu(lambda: record_floor(messages, folder))
        else:
            cpu = _cpu(lambda: record_deep_copies(given, folder))
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl") if path.parent.name != "ledger")
    return Sample(cpu / len(given), size / len(given))


def _cpu(action: Callable[[], Any]) -> float:
    gc.collect()
    measure.warm_allocator()
    return measure.cpu_seconds(action)


def measure_turns(prose: measure.MarkovText, turns: int, options: Any) -> list[dict[str, Any]]:
    """All variants at one length."""
    rollouts = 1 if options.quick else max(4, options.messages // turns)
    conversations = [make_conversation(prose, turns) for _ in range(rollouts)]
    few = conversations[: max(1, options.naive_messages // turns**2)]
    samples: dict[str, list[Sample]] = {variant: [] for variant in VARIANTS}
    for number in range(options.rounds + 1):
        for variant in VARIANTS:
            measured = sample(variant, few if variant == "naive" else conversations)
            if number > 0:  # the first round warms up
                samples[variant].append(measured)
    rows = []
    floor = measure.median([one.cpu for one in samples["floor"]])
    floor_size = measure.median([one.size for one in samples["floor"]])
    naive = measure.median([one.cpu for one in samples["naive"]])
    for variant, measured_all in samples.items():
        cpu = measure.median([one.cpu for one in measured_all])
        size = measure.median([one.size for one in measured_all])
        rows.append({
            "turns": turns, "variant": variant, "CPU ms": 1000 * cpu, "× floor": cpu / floor, "naive ÷ it": naive / cpu,
            "KB on disk": size / 1000, "bytes × floor": size / floor_size,
        })  # fmt: skip
    return rows


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much more 100 turns cost than 25, by variant, against the floor's own growth."""
    cpu = {(row["variant"], row["turns"]): row["CPU ms"] for row in rows}
    if ("floor", 25) not in cpu or ("floor", 100) not in cpu:
        return []
    own = cpu["floor", 100] / cpu["floor", 25]
    grown = {variant: cpu[variant, 100] / cpu[variant, 25] for variant in VARIANTS}
    return [{"variant": variant, "100 ÷ 25 turns": times, "× floor's": times / own} for variant, times in grown.items()]


def append_growth(prose: measure.MarkovText, turns: Sequence[int], rounds: int, messages: int) -> list[dict[str, Any]]:
    """The cost of `append` per turn in longer and longer rollouts, against the shortest."""
    made = {count: [make_conversation(prose, count) for _ in range(max(1, messages // count))] for count in turns}
    samples: dict[int, list[float]] = {count: [] for count in turns}
    for number in range(rounds + 1):
        for count, conversations in made.items():
            measured = sample("append", conversations)
            if number > 0:
                samples[count].append(1e6 * measured.cpu / count)
    costs = {count: measure.median(measured) for count, measured in samples.items()}
    return [
        {"turns": count, "CPU µs per turn": cost, "× shortest": cost / costs[turns[0]]} for count, cost in costs.items()
    ]


def compressed_sizes(turns: int, rollouts: int) -> list[dict[str, Any]]:
    """The compressed size of a segment as a fraction of its plain size, for human text and for generated text."""
    kinds: dict[str, Text] = {"real": measure.ReferenceText(), "made up": measure.MarkovText()}
    return [{"text": kind, "turns": turns, **_compressed_size(text, turns, rollouts)} for kind, text in kinds.items()]


def _compressed_size(text: Text, turns: int, rollouts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        with create_run(Path(name) / "run", trace="full") as run:
            record_with_builder([convert_workload(make_conversation(text, turns)) for _ in range(rollouts)], run)
        [plain] = (Path(name) / "run" / "rollouts").glob("*.jsonl")
        before = plain.stat().st_size
        after = compress_segment(plain).stat().st_size
    return {"plain KB": before / 1000, "compressed KB": after / 1000, "compressed ÷ plain": after / before}


def step_latencies(prose: measure.MarkovText, turns: int, rollouts: int) -> list[dict[str, Any]]:
    """How long a caller waits for `r.step()`."""
    few = [make_conversation(prose, turns) for _ in range(min(rollouts, 20))]
    with tempfile.TemporaryDirectory() as name, create_run(Path(name) / "run", trace="full") as run:
        record_with_recorder(few, run)
        found = [1000 * wait for _ in range(max(1, rollouts // len(few))) for wait in record_with_recorder(few, run)]
    shares = {"p50 ms": 0.5, "p99 ms": 0.99, "p99.9 ms": 0.999}
    return [
        {"turns": turns, "steps": len(found), **{name: measure.percentile(found, at) for name, at in shares.items()}}
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, interleaved, and print medians."""
    parser = measure.parser(__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=list(TURNS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=6000, help="turns in one sample, over all its rollouts")
    parser.add_argument("--naive-messages", type=int, default=2500, help="copied turns in one sample of the naive way")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.rounds, options.messages = [1, 3], 1, 3
    prose = measure.MarkovText()
    longest = 3 if options.quick else 50
    rows = [row for turns in options.turns for row in measure_turns(prose, turns, options)]
    tables = {
        "CPU and bytes of one rollout": rows,
        "Growth": growth(rows),
        "Growth of append": append_growth(
            prose, [2, 4] if options.quick else [100, 200, 500], options.rounds, options.messages
        ),
        "Compressed": compressed_sizes(longest, 2 if options.quick else 100),
        "Wait for r.step()": step_latencies(prose, longest, 2 if options.quick else 400),
    }
    parameters = {name: getattr(options, name) for name in ("turns", "rounds", "messages", "naive_messages")}
    report = {"benchmark": "trace_cost", **measure.machine(), "parameters": parameters, "figures": tables}
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
