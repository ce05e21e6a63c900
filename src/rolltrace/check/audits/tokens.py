"""Audits of token ids: they decode to the text, continue each other, and begin once."""

from itertools import pairwise

from rolltrace.check.audit import AuditInput, Severity, audit
from rolltrace.check.audits.environment import continues
from rolltrace.check.rollout_tally import tallied
from rolltrace.check.settings import CheckSettings
from rolltrace.check.tokenizer import load_tokenizer
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.text_transform import has_hashed_text
from rolltrace.trace.tokens import Tokens


@audit(
    Severity.ERROR,
    "The recorded tokens are not those of the recorded text, so the policy is trained on something else than what was "
    "graded.",
    "Record the ids that the sampler returned, and decode the text from them, with the policy's own tokenizer.",
    input=AuditInput.ROLLOUTS,
)
@tallied("the tokens of {count} of {of} rollouts do not decode to their text")
def tokens_are_not_the_text(rollout: Rollout, settings: CheckSettings) -> bool | None:
    """With --tokenizer: the tokens of a response decode to its text."""
    if settings.tokenizer is None or has_hashed_text(rollout):
        return None
    tokenizer = load_tokenizer(settings.tokenizer)
    known = [(tokens.response, text) for step in rollout.steps if (tokens := step.tokens) and (text := _text(step))]
    return any(tokenizer.decode(ids).strip() != text.strip() for ids, text in known) if known else None


def _text(step: Step) -> str | None:
    """What the policy wrote, as one text; None if only its parts are known."""
    if step.raw is not None:
        return step.raw
    message = step.trace.policy_response
    return None if message.tool_calls or message.reasoning or message.parts else message.content


@audit(
    Severity.WARNING,
    "The tokens of earlier turns changed when the next prompt was made from their text, so a rollout of several turns "
    "is trained on tokens that were never sampled.",
    "Build the next prompt from the recorded ids, or turn off what the chat template removes from earlier turns.",
    input=AuditInput.ROLLOUTS,
)
@tallied("in {count} of {of} rollouts a prompt does not begin with the tokens of the turn before")
def history_tokenized_again(rollout: Rollout, _: CheckSettings) -> bool | None:
    """The tokens of a prompt begin with those of the prompt before and of its answer."""
    pairs = [
        (one.tokens, other.tokens)
        for one, other in pairwise(rollout.steps)
        if one.tokens is not None and other.tokens is not None and continues(rollout, one, other)
    ]
    return any(_is_changed(*pair) for pair in pairs) if pairs else None


def _is_changed(earlier: Tokens, later: Tokens) -> bool:
    length = earlier.shared_prefix + len(earlier.prompt) + len(earlier.response)
    return later.shared_prefix < length - 1  # the template may write another end token than the sampler's last one


@audit(
    Severity.WARNING,
    "A prompt that begins twice is one that the policy was not trained on, which lowers its quality without an error.",
    "Let either the chat template or the tokenizer add the beginning, not both: `add_special_tokens=False`.",
    input=AuditInput.ROLLOUTS,
)
@tallied("the prompts of {count} of {of} rollouts begin with the beginning-of-text token twice")
def double_bos(rollout: Rollout, settings: CheckSettings) -> bool | None:
    """With --tokenizer: a prompt begins with the beginning-of-text token once."""
    if settings.tokenizer is None or (bos := load_tokenizer(settings.tokenizer).bos) is None:
        return None
    if not rollout.steps or (tokens := rollout.steps[0].tokens) is None:
        return None
    return tokens.prompt[:2] == (bos, bos)
