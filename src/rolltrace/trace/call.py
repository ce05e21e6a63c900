"""A model call that is not a turn of the policy, and the quotes that stand for text which the run stores elsewhere."""

import msgspec

from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import DroppedWithText, Duration, Label, Omittable, Range, Text
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.tokens import Usage


class Quote(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Text of a call that the run holds elsewhere: it is stored there, and put back when the call is read.

    The text is that of message `message_index` or of `step`; with a `char_range`, a part of it. If `offset` is None,
    the whole messages of `message_range` are quoted.
    """

    prompt_index: int | None = None
    """The message of the stored prompt that the text is cut from, or that whole messages come before; None: `reply`."""
    offset: int | None = None
    """Where the text belongs: the number of characters of that message's stored content before it."""
    rollout: str | None = None
    """The rollout that is quoted; None: that of the same line."""
    call_index: int | None = None
    """An earlier call of the same line that is quoted in place of a rollout; its messages are those of its prompt."""
    message_index: int | None = None
    """The message that is quoted."""
    step: int | None = None
    """The step whose response is quoted, where the rollout's `messages` do not hold it."""
    tool_call_index: int | None = None
    """The tool call of that message whose arguments are quoted."""
    reasoning: bool | None = None
    """Whether that message's reasoning is quoted and not its content."""
    char_range: Range | None = None
    """The characters that are quoted; None: all."""
    message_range: Range | None = None
    """The whole messages that are quoted."""


class Call(msgspec.Struct, frozen=True):
    """A model call that is not a turn of the policy: of a grader, an answerer or an opponent."""

    role: str
    """`grader`, `answerer`, `opponent`."""
    policy: str
    """The name of the policy that answered."""
    prompt: tuple[Message, ...]
    """The messages that were sent; if the call continues another, only the new ones."""
    reply: Message | None = None
    step: int | None = None
    """The step during which it was made; None if the rollout was over."""
    policy_version: int | str | None = None
    raw: Text | None = None
    error: Failure | None = None
    usage: Usage | None = None
    seconds: Duration | None = None
    continues_call: Omittable[int | None] = None
    """The call whose whole conversation, its reply included, comes before this prompt; its text is not repeated."""
    about: Omittable[Label | None] = None
    """The subject of the call: a criterion, a seat, or the ids of two rollouts that are compared."""
    termination: Omittable[Termination | None] = None
    """How the reply ended."""
    quotes: Omittable[DroppedWithText[tuple[Quote, ...]]] = ()
    """Text that is stored elsewhere in the run, to be put back into `prompt` and `reply`. A decoded call has none."""
