"""The rollout of one trace of verifiers: its message graph as steps, its rewards, metrics, judge calls and errors."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from rolltrace.bridges.recorded_run import score_tokens
from rolltrace.errors import InputError
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.writer import RunWriter
from rolltrace.trace.stop_reasons import FINISH_REASONS, Layer, StoppedBy, StopReason
from rolltrace.trace.tokens import Tokens

_STOP_REASONS = {
    "agent_completed": StopReason.COMPLETED,
    "max_turns": StopReason.MAX_TURNS,
    "max_output_tokens": StopReason.MAX_SAMPLED_TOKENS,
    "max_total_tokens": StopReason.MAX_TOTAL_TOKENS,
}
"""The stop conditions of verifiers that have a name here; others keep theirs."""
_LAYERS = {
    "ProviderError": Layer.POLICY,
    "ToolsetError": Layer.TOOL,
    "TaskError": Layer.ENV,
    "EnvError": Layer.ENV,
    "TimeoutError": Layer.LIMIT,
    "HarnessError": Layer.RUNNER,
    "SandboxError": Layer.RUNNER,
    "InterceptionError": Layer.RUNNER,
    "TunnelError": Layer.RUNNER,
}


def load_verifiers() -> Any:
    """The module `verifiers.v1`; raises `InputError` if it is not installed."""
    try:
        return import_module("verifiers.v1")
    except ImportError as error:
        raise InputError(
            f"Expected the package verifiers of version 0.4 or newer: pip install 'verifiers>=0.4'. ({error})"
        ) from error


class RecordedTrace:
    """The rollout of one trace."""

    def __init__(self, recorder: RolloutRecorder, trace: Any, index: int) -> None:
        self.index = index
        self._recorder = recorder
        self._trace = trace
        self._to_chat: Callable[[Any], dict[str, Any]] = import_module("verifiers.v1.dialects.chat").message_to_wire
        self._chats: dict[int, dict[str, Any]] = {}
        """The messages of nodes, as chat dicts."""
        self._steps: dict[int, int] = {}
        """The step of each sampled node."""
        self._calls = 0
        """How many of the trace's calls are recorded."""
        self._last_sent: list[dict[str, Any]] = []
        """The last prompt that was sent, while it has no answer."""

    def update(self) -> None:
        """Record the calls that are new."""
        trace = self._trace
        for call in trace.calls[self._calls :]:
            self._calls += 1
            if call.node is not None:
                self._step(call.node, call)
            elif call.error is not None:
                self._fail(call)
        self._note_request_in_flight()

    def _note_request_in_flight(self) -> None:
        """Keep the prompt that has no answer yet: a trace shows it without those of its messages that the graph has."""
        requests = list(getattr(self._trace, "_pending", {}).values())
        if len(requests) > 1:  # of several at once, it is unknown which one fails
            self._last_sent = []
        elif requests and requests[0]:
            nodes = self._trace.nodes
            new = [self._to_chat(message) for message in requests[0]]
            is_whole = not nodes or new[0]["role"] == "system"
            self._last_sent = new if is_whole else [*self._path(len(nodes) - 1), *new]

    def _fail(self, call: Any) -> None:
        self._recorder.call(
            self._last_sent,
            role="policy",
            policy=call.model or "",
            step=len(self._steps),
            error=failure_fields(call.error),
            seconds=call.time.duration,
        )

    def _path(self, node: int | None) -> list[dict[str, Any]]:
        """The messages from the root to a node."""
        return [self._chat(number) for number in _path(self._trace.nodes, node)]

    def _chat(self, node: int) -> dict[str, Any]:
        if node not in self._chats:
            self._chats[node] = self._to_chat(self._trace.nodes[node].message)
        return self._chats[node]

    def _step(self, number: int, call: Any) -> None:
        nodes = self._trace.nodes
        node = nodes[number]
        path = _path(nodes, number)
        self._steps[number] = len(self._steps)
        self._last_sent = []
        links = [link.model_dump(mode="json") for link in node.semantic_parents]
        usage = None if call is None else call.usage
        sampling = None if call is None or call.sampling is None else call.sampling.model_dump(exclude_none=True)
        self._recorder.step(
            prompt=[self._chat(each) for each in path[:-1]],
            response=self._chat(number),
            reward=None,
            tools=[_tool(tool) for tool in nodes[path[0]].tools],
            sampling=sampling or None,
            termination=None if call is None else FINISH_REASONS.get(call.finish_reason),
            usage=None
            if usage is None
            else {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.completion_tokens},
            seconds=None if call is None else call.time.duration,
            tokens=_tokens([nodes[each] for each in path]),
            extra={"semantic_parents": links} if links else None,
        )

    def end(self, error: BaseException | Mapping[str, Any] | None) -> None:
        """The trace is over; `error` is that of the whole episode."""
        trace, recorder = self._trace, self._recorder
        self.update()
        for number, node in enumerate(trace.nodes):
            if node.sampled and number not in self._steps:
                self._step(number, None)
        if self._last_sent:
            recorder.send(self._last_sent)
        elif trace.nodes and not trace.nodes[-1].sampled:
            recorder.observe(self._path(len(trace.nodes) - 1))
        for call in trace.info.get("judge_calls", ()):
            _judge_call(recorder, call)
        for name, value in trace.metrics.items():
            if value is not None:
                recorder.metric(name, value)
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        recorder.grade(
            trace.reward,
            {name: reward.score for name, reward in rewards.items()},
            _extra(trace),
            reward_weights={name: reward.weight for name, reward in rewards.items()},
        )
        if not trace.ok and trace.errors:
            error = failure_fields(trace.errors[-1])
        reason, stopped_by = _stop_reason(trace)
        recorder.end(reason, stopped_by=stopped_by, error=error)

    def score_tokens(self, run: RunWriter) -> None:
        """Record the numbers per token that a trainer has set."""
        for name, score in (("advantages", "advantage"), ("trainer_logprobs", "trainer_logprobs")):
            tokens = [getattr(self._trace.nodes[number], name) for number in self._steps]
            score_tokens(run, self._recorder.id, score, tokens, "prime-rl")


def _path(nodes: Sequence[Any], node: int | None) -> list[int]:
    """The nodes from the root to this one."""
    path = []
    while node is not None:
        path.append(node)
        node = nodes[node].parent
    return path[::-1]


def _tokens(path: Sequence[Any]) -> Tokens | None:
    """The tokens of a sampled node: the prompt is everything before its first sampled token."""
    node = path[-1]
    if True not in node.mask:
        return None
    first = node.mask.index(True)
    prompt = [token for each in path[:-1] for token in each.token_ids] + node.token_ids[:first]
    response = node.token_ids[first:]
    logprobs = tuple(node.logprobs) if len(node.logprobs) == len(response) else None
    return Tokens(prompt=tuple(prompt), response=tuple(response), logprobs=logprobs)


def tokens_of_last_call(trace: Any) -> Tokens | None:
    """The tokens of the last answer in a trace, if verifiers has them."""
    node = trace.calls[-1].node if trace.calls else None
    return None if node is None else _tokens([trace.nodes[number] for number in _path(trace.nodes, node)])


def _tool(tool: Any) -> dict[str, Any]:
    fields: dict[str, Any] = tool.model_dump(mode="json", exclude_none=True)
    return fields if fields.pop("type") == "function" else {**fields, "type": tool.type}


def _judge_call(recorder: RolloutRecorder, call: Mapping[str, Any]) -> None:
    response = call["response"]
    usage = response.get("usage")
    recorder.call(
        call["request"]["messages"],
        {name: value for name, value in response["message"].items() if value is not None},
        role="grader",
        policy=call["request"]["model"],
        about=call["name"],
        usage=None
        if usage is None
        else {
            "prompt_tokens": usage["prompt_tokens"] + (usage.get("cached_input_tokens") or 0),
            "completion_tokens": usage["completion_tokens"],
        },
    )


def _extra(trace: Any) -> dict[str, Any]:
    """What verifiers knows of a trace beside its numbers."""
    extra: dict[str, Any] = {
        "stop_condition": trace.stop_condition,
        "info": {name: value for name, value in trace.info.items() if name != "judge_calls"},
        "unscored": [name for name, value in (*trace.rewards.items(), *trace.metrics.items()) if value is None],
        "errors": [_error_summary(error) for error in trace.errors],
        "untrainable": not trace.agent.trainable,
        "request_rewrites": [rewrite.handler for rewrite in trace.request_rewrites],
        "response_rewrites": [rewrite.handler for rewrite in trace.response_rewrites],
    }
    if trace.root_reply is not None:
        extra["root_reply"] = trace.root_reply
    with contextlib.suppress(Exception):  # a state may hold what cannot be dumped
        extra["state"] = trace.state.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in extra.items() if value}


def _stop_reason(trace: Any) -> tuple[str, StoppedBy]:
    condition = trace.stop_condition or "agent_completed"
    if trace.is_timeout:
        return StopReason.TIMEOUT, StoppedBy.RUNNER
    if condition == "agent_completed" and trace.is_truncated:
        return StopReason.MAX_TOKENS, StoppedBy.ENV
    by_runner = condition.startswith("max_")
    return _STOP_REASONS.get(condition, condition), StoppedBy.RUNNER if by_runner else StoppedBy.ENV


def failure_fields(error: Any) -> dict[str, Any]:
    """An error of verifiers, as fields of a failure."""
    is_scoring = error.type == "TaskError" and "scoring" in error.message.partition(":")[0]
    layer = Layer.GRADER if is_scoring else _LAYERS.get(error.type, Layer.CALLER)
    return {"type": error.type, "message": error.message, "traceback": error.traceback, "layer": layer}


def _error_summary(error: Any) -> dict[str, Any]:
    fields: dict[str, Any] = error.model_dump(mode="json", exclude={"traceback"}, exclude_none=True)
    return fields
