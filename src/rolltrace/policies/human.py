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
  \\                            a line of only this is an empty line of your answer
  //call …                     is text that begins with /call
  /quit                        leaves: what was played so far is recorded as cancelled"""
_SHORT = "Answer, and end with an empty line; /help, /quit."
_COMMANDS = ("/call", "/help", "/quit")
_REMEMBERED = 64
"""For how many rollouts the messages that the person has seen are remembered."""

_Seen = tuple[str, str]


class HumanPolicy:
    """Asks a person one question at a time, and shows only the messages that are new since that person's last turn."""

    version: int | str | None = None
    context_length: int | None = None

    def __init__(self, *, name: str = "human", source: TextIO | None = None, output: TextIO | None = None) -> None:
        """Read standard input and write to standard error by default; all such policies share one terminal."""
        self.name = name
        self._is_elsewhere = source is not None or output is not None
        self._terminal = TerminalInput(source, output) if self._is_elsewhere else _terminal()
        self._quit_count = self._terminal.quit_count
        self._seen: dict[_Seen, tuple[Message, ...]] = {}

    async def complete(self, request: Request) -> Completion:
        """Return the person's answer; quitting stops everything, as Ctrl-C does."""
        conversation = ("" if request.identity is None else request.identity.id, request.role)
        seen = self._seen.pop(conversation, ())
        talk = functools.partial(self._talk, request, seen)
        completion = await self._terminal.ask(conversation[0], talk, self._quit_count)
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[conversation] = (*request.messages, completion.message)
        return completion

    def count_tokens(self, request: Request) -> int | None:
        """Return None: the number of tokens is unknown."""
        return None

    async def close(self) -> None:
        """Close a source of its own, not the shared terminal; a person who quit can be asked again."""
        self._quit_count = self._terminal.quit_count
        if self._is_elsewhere:
            self._terminal.close()

    def _talk(self, request: Request, seen: Sequence[Message], read_line: ReadLine) -> Completion:
        """Show the question and read the answer. Runs in the terminal's thread."""
        screen = _Screen(self._terminal.output)
        screen.show(request, seen)
        try:
            completion = _read_answer(request, read_line, screen)
        except QuestionCancelled:
            screen.say("(This question was cancelled.)")
            raise
        if completion is None:
            self._terminal.quit()
            raise HumanQuit
        return completion


@functools.cache
def _terminal() -> TerminalInput:
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
    except HumanQuit as left:
        raise KeyboardInterrupt(str(left)) from left
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
                screen.say("(The input has ended.)")
                return None
            continue
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return None
        if command == "/help":
            screen.say(HELP)
            continue
        if command == "/call":
            name, _, arguments = rest.strip().partition(" ")
            if not name:
                screen.say('Expected a tool after /call, as in: /call NAME {"argument": 1}')
                continue
            calls.append(ToolCall(name, arguments.strip() or "{}", id=f"call_{request.step}_{len(calls)}"))
        else:
            answer.append("" if line.strip() == "\\" else line[1:] if line.startswith(_ESCAPED) else line)
        typed.append(line)


_ESCAPED = tuple(f"/{command}" for command in _COMMANDS)


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
        self.say("")
        self.say(_title(request), "bold")
        known = _common(seen, request.messages)
        if 0 < known < len(seen) or (seen and not known):
            self.say("What you saw before has changed. From there on it is now:", "italic")
        for message in request.messages[known:]:
            self._show_message(message)
        for tool in request.tools:
            self.say(f"tool {tool.name}({_arguments(tool)}): {tool.description}", "dim")
        self.say(_SHORT, "dim")

    def say(self, text: str, style: str = "") -> None:
        """Print one or more lines."""
        from rich.text import Text

        self._console.print(Text(escape_text(text), style), soft_wrap=True)

    def prompt(self) -> None:
        """Print the input prompt, if the output is a terminal."""
        if self._console.is_terminal:
            self._console.print("> ", end="")
            self._console.file.flush()

    def _show_message(self, message: Message) -> None:
        self.say(f"[{message.role}{f' {message.name}' if message.name else ''}]".replace("\n", " "), "cyan")
        if message.content:
            self.say(message.content)
        for part in message.parts:
            self.say(f"({part.type}{f' {part.media_type}' if part.media_type else ''})", "dim")
        for call in message.tool_calls:
            self.say(f"calls {call.name} {call.arguments}", "dim")


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


def _common(seen: Sequence[Message], messages: Sequence[Message]) -> int:
    """Return the length of the common prefix."""
    for number, (one, other) in enumerate(zip(seen, messages, strict=False)):
        if one != other:
            return number
    return min(len(seen), len(messages))
