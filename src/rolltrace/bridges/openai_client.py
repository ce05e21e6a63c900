"""Records the calls of an `openai` client: each call inside the block of a rollout is a step of it."""

import contextlib
import inspect
import json
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from rolltrace.bridges.api_calls import ApiRequest, StreamCollector, parse_request, record_answer
from rolltrace.bridges.guard import Guard
from rolltrace.errors import InputError
from rolltrace.store.recorder import RolloutRecorder, current_rollout

_log = logging.getLogger("rolltrace")
_RAW_RESPONSE = "X-Stainless-Raw-Response"
_recorded: "weakref.WeakKeyDictionary[Any, RecordedClient]" = weakref.WeakKeyDictionary()


def record_calls(client: Any, rollout: RolloutRecorder | None = None) -> "RecordedClient":
    """Record the calls of an `openai.OpenAI` or `openai.AsyncOpenAI`, also chat streams and the Responses API.

    A call inside `with run.rollout(…)` becomes a step of that rollout, without a reward. One outside of any rollout is
    not recorded, and the first of them is logged. Threads do not know the rollout of the block that started them: for
    them, `record_calls(client, rollout=r).client` is a copy of the client whose calls are all recorded in `r`.
    """
    if not callable(getattr(client, "request", None)) or not callable(getattr(client, "copy", None)):
        raise InputError(f"Expected a client of the openai package, got {type(client).__name__}.")
    known = _recorded.get(client)
    if rollout is not None:
        copy = client.copy if known is None else known.original_copy
        return RecordedClient(copy(), rollout)
    return RecordedClient(client, None) if known is None else known


class RecordedClient:
    """A client whose calls are recorded."""

    def __init__(self, client: Any, rollout: RolloutRecorder | None) -> None:
        self.client = client
        """The client itself, or its copy for one rollout."""
        self.outside = 0
        """How many calls were made outside of any rollout, and not recorded."""
        self._guard = Guard("a call", "RecordedClient.failed")
        self._rollout = rollout
        self._request: Callable[..., Any] = client.request
        self.original_copy: Callable[..., Any] = client.copy
        is_async = inspect.iscoroutinefunction(client.request)
        client.request = self._recorded_async if is_async else self._recorded_sync
        client.copy = client.with_options = self._copy
        _recorded[client] = self

    @property
    def failed(self) -> int:
        """How many calls could not be recorded because recording them failed."""
        return self._guard.failed

    def undo(self) -> None:
        """Stop recording. Copies of the client that were made before are recorded until they are undone."""
        if _recorded.get(self.client) is self:
            del _recorded[self.client]
            del self.client.request, self.client.copy, self.client.with_options

    def _copy(self, *args: Any, **kwargs: Any) -> Any:
        """`copy` and `with_options`, which make new clients."""
        return RecordedClient(self.original_copy(*args, **kwargs), self._rollout).client

    def _recorded_sync(self, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        with self._recording(options) as observe:
            result = self._request(cast_to, options, *args, **kwargs)
            observe(result)
        return result

    async def _recorded_async(self, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        with self._recording(options) as observe:
            result = await self._request(cast_to, options, *args, **kwargs)
            observe(result)
        return result

    @contextlib.contextmanager
    def _recording(self, options: Any) -> Iterator[Callable[[Any], None]]:
        """Record a call. The block calls what it gets with the result; an exception in it is the call's failure."""
        call = self._guard(self._new_call, options)

        def observe(result: Any) -> None:
            if call is not None:
                self._guard(call.observe, result)

        try:
            yield observe
        except BaseException as error:
            if call is not None:
                self._guard(call.fail, error)
            raise

    def _new_call(self, options: Any) -> "_Call | None":
        """A call that is recorded; None for one that is not."""
        request = parse_request(str(options.url), options.json_data)
        recorder = self._rollout or current_rollout()
        if request is None:
            return None
        if recorder is None:
            self.outside += 1
            if self.outside == 1:
                _log.warning(
                    "A call was not recorded because it was made outside of any rollout: make it inside "
                    "`with run.rollout(…)`, or in a thread use record_calls(client, rollout=r).client. Further calls "
                    "are counted in RecordedClient.outside."
                )
            return None
        headers = options.headers if isinstance(options.headers, Mapping) else {}
        recorder.send(request.prompt)
        return _Call(recorder, request, self._guard, is_raw_stream=headers.get(_RAW_RESPONSE) == "stream")


class _Call:
    """One call that is being recorded."""

    def __init__(self, recorder: RolloutRecorder, request: ApiRequest, guard: Guard, is_raw_stream: bool) -> None:
        self._recorder = recorder
        self._request = request
        self._guard = guard
        self._is_raw_stream = is_raw_stream
        self._started = time.perf_counter()
        self._is_over = False

    def fail(self, error: BaseException) -> None:
        """The call raised: its prompt and the error are recorded as a call, because there is no turn."""
        self._is_over = True
        seconds = time.perf_counter() - self._started
        self._recorder.call(self._request.prompt, role="policy", error=error, seconds=seconds)

    def observe(self, result: Any) -> None:
        """Record what the call returned, now or when it was read."""
        if hasattr(result, "_iterator") and hasattr(result, "response"):
            self._watch(result)
        elif hasattr(result, "http_response"):
            self._observe_raw(result)
        else:
            self._record(result)

    def _observe_raw(self, result: Any) -> None:
        """A raw response: recorded from its bytes if they are there, else when it is parsed."""
        if not self._is_raw_stream and not getattr(result, "_is_sse_stream", False):
            self._record(json.loads(result.http_response.content))
            return
        parse = result.parse

        def parsed(*args: Any, **kwargs: Any) -> Any:
            value = parse(*args, **kwargs)
            self._guard(self.observe, value)
            return value

        async def parsed_async(*args: Any, **kwargs: Any) -> Any:
            value = await parse(*args, **kwargs)
            self._guard(self.observe, value)
            return value

        result.parse = parsed_async if inspect.iscoroutinefunction(parse) else parsed

    def _watch(self, stream: Any) -> None:
        """Record a stream when it is over, or as far as it was read when the rollout ends."""
        collector = StreamCollector()
        events = stream._iterator
        collect = self._collect_async if hasattr(events, "__anext__") else self._collect
        stream._iterator = collect(events, collector)
        self._recorder.call_before_end(lambda: self._guard(self._record, collector.answer, True))

    def _collect(self, events: Iterator[Any], collector: StreamCollector) -> Iterator[Any]:
        error: BaseException | None = None
        try:
            for event in events:
                self._guard(collector.add, event)
                yield event
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._guard(self._record, collector.answer, error is not None, error)

    async def _collect_async(self, events: AsyncIterator[Any], collector: StreamCollector) -> AsyncIterator[Any]:
        error: BaseException | None = None
        try:
            async for event in events:
                self._guard(collector.add, event)
                yield event
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._guard(self._record, collector.answer, error is not None, error)

    def _record(self, answer: Any, is_partial: bool = False, error: BaseException | None = None) -> None:
        """Record the answer, once; a partial one says so, and why."""
        if self._is_over:
            return
        self._is_over = True
        extra: dict[str, Any] = {"partial": True} if is_partial else {}
        if error is not None and not isinstance(error, GeneratorExit):
            extra["error"] = f"{type(error).__name__}: {error}"
        record_answer(self._recorder, self._request, answer, time.perf_counter() - self._started, **extra)
