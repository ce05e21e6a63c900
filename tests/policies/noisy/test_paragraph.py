"""Paragraphs about a prompt."""

from rolltrace.policies.noisy.paragraph import write_paragraph
from talk import rng, talk


def test_a_paragraph_is_about_the_prompt():
    """It has the prompt's longest words; by mistake it says little."""
    messages = talk("Explain why a kettle whistles.").messages
    written = write_paragraph(messages, rng(), 1.0)
    assert any(word in written for word in ("explain", "kettle", "whistles"))
    assert len(written.split()) > 2 * len(write_paragraph(messages, rng(), 0.0).split())
