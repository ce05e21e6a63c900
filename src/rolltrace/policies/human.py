"""A policy that asks a person at the terminal; the record has the same form as a model's."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TextIO

from rolltrace.policies.policy import Completion, Request
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.policies.terminal_input import HumanQuit, QuestionCancelled, ReadLine, TerminalInput
from rolltrace.terminal_text import escape_text
from rolltrace.trace.message import Message, ToolCall, ToolSpec
from rolltrace.trace.stop_reasons import Termination

HELP = """\
Write your answer, in as many lines as you like, and end it with an empty line (or Ctrl-D).
  /call NAME {"argument": 1}   calls a tool, with its arguments as JSON; several calls make one turn
  \\                            alone on a line: an empty line of your answer
  //call …                     text that begins with /call
  /quit                        stops playing; the unfinished rollouts are recorded as cancelled"""
_SHORT_HELP = "Answer, and end with an empty line; /help, /quit."
_COMMANDS = ("/call", "/help", "/quit")
_MAX_CONVERSATIONS = 64
"""For how many conversations the messages that the person has seen are stored."""

_ConversationKey = tuple[str, str]
"""Rollout id and role."""


class HumanPolicy:
    """Asks a person one question at a time, and shows only the messages that are new since that person's last turn."""

    version: int | str | None = None
    context_length: int | None = None

    def __init__(self, *, name: str = "human", source: TextIO | None = None, output: TextIO | None = None) -> None:
        """Read standard input and write to standard error by default; all such policies share one terminal."""
        self.name = name
        self._owns_terminal = source is not None or output is not None
        self._terminal = TerminalInput(source, output) if self._owns_terminal else _shared_terminal()
        self._quit_count = self._terminal.quit_count
        self._seen: dict[_ConversationKey, tuple[Message, ...]] = {}

    async def complete(self, request: Request) -> Completion:
        """Return the person's answer; quitting stops everything, as Ctrl-C does."""
        rollout = "" if request.identity is None else request.identity.id
        seen = self._seen.pop((rollout, request.role), ())
        converse = functools.partial(self._converse, request, seen)
        completion = await self._terminal.ask(rollout, converse, self._quit_count)
        if len(self._seen) >= _MAX_CONVERSATIONS:
            del self._seen[next(iter(self._seen))]
        self._seen[rollout, request.role] = (*request.messages, completion.message)
        return completion

    def count_tokens(self, request: Request) -> int | None:
        """Return None: the number of tokens is unknown."""
        return None

    async def close(self) -> None:
        """Close the policy's own terminal, but not the shared one. A person who quit can be asked again."""
        self._quit_count = self._terminal.quit_count
        if self._owns_terminal:
            self._terminal.close()

    def _converse(self, request: Request, seen: Sequence[Message], read_line: ReadLine) -> Completion:
        """Show the question and read the answer. Runs in the terminal's thread."""
        screen = _Screen(self._terminal.output)
        screen.show(request, seen)
        try:
            completion = _read_answer(request, read_line, screen)
        except QuestionCancelled:
            screen.print("(This question was cancelled.)")
            raise
        if completion is None:
            self._terminal.quit()
            raise HumanQuit
        return completion


@functools.cache
def _shared_terminal() -> TerminalInput:
    """Return the terminal that all policies share, because there is one standard input."""
    return TerminalInput()


def human(name: str = "human") -> HumanPolicy:
    """Return a policy for the person at the terminal; `human:NAME` sets the policy's name in the record."""
    return HumanPolicy(name=name or "human")


@contextlib.contextmanager
def interrupt_on_quit() -> Iterator[None]:
    """Raise KeyboardInterrupt if a person quits inside the block; use it around an event loop, not inside one."""
    try:
        yield
    except HumanQuit as error:
        raise KeyboardInterrupt(str(error)) from error
    except BaseExceptionGroup as group:  # several tasks asked at the same time
        if group.subgroup(HumanQuit) is None:
            raise
        raise KeyboardInterrupt(str(HumanQuit())) from group


def _read_answer(request: Request, read_line: ReadLine, screen: "_Screen") -> Completion | None:
    typed: list[str] = []
    answer: list[str] = []
    calls: list[ToolCall] = []
    while True:
        screen.prompt()
        line = read_line()
        if line is None or not line.strip():
            if typed:
                return _completion(typed, answer, calls)
            if line is None:
                screen.print("(The input has ended.)")
                return None
            continue
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return None
        if command == "/help":
            screen.print(HELP)
            continue
        if command == "/call":
            name, _, arguments = rest.strip().partition(" ")
            if not name:
                screen.print('Expected a tool after /call, as in: /call NAME {"argument": 1}')
                continue
            calls.append(ToolCall(name, arguments.strip() or "{}", id=f"call_{request.step}_{len(calls)}"))
        else:
            answer.append("" if line.strip() == "\\" else line[1:] if line.startswith(_ESCAPED_COMMANDS) else line)
        typed.append(line)


_ESCAPED_COMMANDS = tuple(f"/{command}" for command in _COMMANDS)


def _completion(typed: Sequence[str], answer: Sequence[str], calls: Sequence[ToolCall]) -> Completion:
    content, raw = "\n".join(answer), "\n".join(typed)
    return Completion(
        message=Message("assistant", content, tool_calls=tuple(calls)),
        termination=Termination.TOOL_CALLS if calls else Termination.EOS,
        raw=None if raw == content else raw,
    )


class _Screen:
    """Shows a question, with control characters escaped."""

    def __init__(self, output: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=output, highlight=False, markup=False, emoji=False)

    def show(self, request: Request, seen: Sequence[Message]) -> None:
        """Show the title, the new messages and the tools."""
        self.print("")
        self.print(_title(request), "bold")
        shared = _shared_prefix(seen, request.messages)
        if shared < len(seen):
            self.print("The conversation has changed. From the first change on it is now:", "italic")
        for message in request.messages[shared:]:
            self._show_message(message)
        for tool in request.tools:
            self.print(f"tool {tool.name}({_arguments(tool)}): {tool.description}", "dim")
        self.print(_SHORT_HELP, "dim")

    def print(self, text: str, style: str = "") -> None:
        """Print one or more lines."""
        from rich.text import Text

        self._console.print(Text(escape_text(text), style), soft_wrap=True)

    def prompt(self) -> None:
        """Print the input prompt, if the output is a terminal."""
        if self._console.is_terminal:
            self._console.print("> ", end="")
            self._console.file.flush()

    def _show_message(self, message: Message) -> None:
        self.print(f"[{message.role}{f' {message.name}' if message.name else ''}]".replace("\n", " "), "cyan")
        if message.content:
            self.print(message.content)
        for part in message.parts:
            self.print(f"({part.type}{f' {part.media_type}' if part.media_type else ''})", "dim")
        for call in message.tool_calls:
            self.print(f"calls {call.name} {call.arguments}", "dim")


def _title(request: Request) -> str:
    identity = request.identity
    # Not the task: its name may be the answer.
    parts = [] if identity is None else [identity.env, f"rollout {identity.index}"]
    if identity is not None and identity.seat is not None:
        parts.append(f"seat {identity.seat}")
    parts.append(f"turn {request.step + 1}" if request.role == POLICY_ROLE else f"You are the {request.role}")
    return f"── {' · '.join(parts)} ──".replace("\n", " ")


def _arguments(tool: ToolSpec) -> str:
    properties = tool.parameters.to_dict().get("properties")
    return ", ".join(map(str, properties)) if isinstance(properties, dict) else ""


def _shared_prefix(seen: Sequence[Message], messages: Sequence[Message]) -> int:
    """The number of messages at the start that are the same in both."""
    pairs = enumerate(zip(seen, messages, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(seen), len(messages)))
