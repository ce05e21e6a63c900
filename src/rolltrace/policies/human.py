"""A person who plays at the terminal: sees what a model would be sent, and leaves the same record."""

import contextlib
import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TextIO

from rolltrace.policies.policy import Completion, Request
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.policies.terminal_input import HumanQuit, QuestionCancelled, ReadLine, TerminalInput
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
"""Of so many rollouts it is known what the person has seen."""
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_HARMLESS = "\n\t\u200c\u200d"

_Seen = tuple[str, str]


class HumanPolicy:
    """Asks a person, one question at a time, and shows of each prompt what is new since that person's last turn."""

    version: int | str | None = None
    context_length: int | None = None

    def __init__(self, *, name: str = "human", source: TextIO | None = None, output: TextIO | None = None) -> None:
        """By default the person is at standard input and standard error, and is the same for every role."""
        self.name = name
        self._is_elsewhere = source is not None or output is not None
        self._desk = TerminalInput(source, output) if self._is_elsewhere else _terminal()
        self._departures = self._desk.quit_count
        self._seen: dict[_Seen, tuple[Message, ...]] = {}

    async def complete(self, request: Request) -> Completion:
        """What the person says; one who leaves stops everything, as Ctrl-C does, and is not asked again."""
        whose = ("" if request.identity is None else request.identity.id, request.role)
        seen = self._seen.pop(whose, ())
        talk = functools.partial(self._talk, request, seen)
        completion = await self._desk.ask(whose[0], talk, self._departures)
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[whose] = (*request.messages, completion.message)
        return completion

    def count_tokens(self, request: Request) -> int | None:
        """Unknown: a person does not count."""
        return None

    async def close(self) -> None:
        """Leave a desk of one's own; the terminal stays for others. A person who has left can be asked again then."""
        self._departures = self._desk.quit_count
        if self._is_elsewhere:
            self._desk.close()

    def _talk(self, request: Request, seen: Sequence[Message], read_line: ReadLine) -> Completion:
        """Show the question and read the answer. Runs in the desk's thread."""
        screen = _Screen(self._desk.output)
        screen.show(request, seen)
        try:
            completion = _read_answer(request, read_line, screen)
        except QuestionCancelled:
            screen.say("(This is no longer asked.)")
            raise  # nobody hears it
        if completion is None:
            self._desk.quit()
            raise HumanQuit
        return completion


@functools.cache
def _terminal() -> TerminalInput:
    """The desk that all share who play at the terminal: there is one standard input."""
    return TerminalInput()


def human(name: str = "human") -> HumanPolicy:
    """The person at the terminal; `human:NAME` says what the record calls them."""
    return HumanPolicy(name=name or "human")


@contextlib.contextmanager
def interrupt_on_quit() -> Iterator[None]:
    """Let a person who leaves end this block as Ctrl-C does; it is for around an event loop, not for inside one."""
    try:
        yield
    except HumanQuit as left:
        raise KeyboardInterrupt(str(left)) from left
    except BaseExceptionGroup as group:  # of tasks that asked at once
        if group.subgroup(HumanQuit) is None:
            raise
        raise KeyboardInterrupt(str(HumanQuit())) from group


def _read_answer(request: Request, read_line: ReadLine, screen: "_Screen") -> Completion | None:
    typed: list[str] = []
    said: list[str] = []
    calls: list[ToolCall] = []
    while True:
        screen.prompt()
        line = read_line()
        if line is None or not line.strip():
            if typed:
                return _completion(typed, said, calls)
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
            said.append("" if line.strip() == "\\" else line[1:] if line.startswith(_ESCAPED) else line)
        typed.append(line)


_ESCAPED = tuple(f"/{command}" for command in _COMMANDS)


def _completion(typed: Sequence[str], said: Sequence[str], calls: Sequence[ToolCall]) -> Completion:
    content, raw = "\n".join(said), "\n".join(typed)
    return Completion(
        message=Message("assistant", content, tool_calls=tuple(calls)),
        termination=Termination.TOOL_CALLS if calls else Termination.EOS,
        raw=None if raw == content else raw,
    )


class _Screen:
    """Shows a question; nothing in it can steer the terminal."""

    def __init__(self, output: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=output, highlight=False, markup=False, emoji=False)

    def show(self, request: Request, seen: Sequence[Message]) -> None:
        """Who asks, what is new, and what can be done."""
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
        """One or more lines."""
        from rich.text import Text

        self._console.print(Text(_visible(text), style), soft_wrap=True)

    def prompt(self) -> None:
        """Where the person types, if there is one who sees it."""
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
    """With how many messages both begin."""
    for number, (one, other) in enumerate(zip(seen, messages, strict=False)):
        if one != other:
            return number
    return min(len(seen), len(messages))


def _visible(text: str) -> str:
    """Text of which no character can move the cursor, hide other text or give the terminal an order."""
    if text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(sign):04X}⟩" if sign not in _HARMLESS and unicodedata.category(sign) in _UNSEEN else sign
        for sign in text
    )
