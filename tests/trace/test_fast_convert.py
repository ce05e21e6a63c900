"""The fast path for chat dicts: where it applies, it agrees with the general conversion."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from rolltrace.trace import convert
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_message, fast_copy, fast_message

TEXTS = st.sampled_from(["", "a", "é “x”", "lone \ud800", "日本"])
ODD = st.one_of(TEXTS, st.none(), st.integers(0, 3), st.booleans(), st.just([]), st.just({}))
BODIES = st.dictionaries(st.sampled_from(["name", "arguments", "strict"]), ODD)
CALLS = st.dictionaries(st.sampled_from(["id", "type", "function", "index"]), st.one_of(ODD, BODIES))
REAL_CALLS = st.builds(
    lambda i, name, arguments: {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}},
    TEXTS, TEXTS, TEXTS,
)  # fmt: skip
FIELDS = {
    "role": st.one_of(st.sampled_from(["user", "assistant", "tool"]), ODD),
    "content": ODD,
    "tool_calls": st.one_of(ODD, st.lists(st.one_of(CALLS, REAL_CALLS), max_size=2)),
    "tool_call_id": ODD,
    "name": ODD,
    "reasoning_content": ODD,
    "refusal": ODD,
}
CHATS = st.lists(st.sampled_from(sorted(FIELDS)), unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in ["role", "content", *names]})
)


def thorough(chat, notes):
    """The general conversion of a dict."""
    return convert._message(chat, "m", notes)


@given(CHATS)
def test_the_fast_path_agrees_with_the_general_one(chat):
    """If the fast path applies, the general one gives the same message without notes."""
    message = fast_message(chat)
    if message is not None:
        notes = []
        assert thorough(chat, notes) == message
        assert notes == []
        made = fast_copy(chat)
        assert made == chat
        if chat.get("tool_calls"):
            chat["tool_calls"][0]["function"]["name"] = "another"
            chat["tool_calls"].append("more")
            assert fast_message(made) == message


@given(CHATS, st.data())
def test_any_chat_dict_can_be_frozen(chat, data):
    """No user's dict raises, and each conversion has the contents at that time."""
    freezer = ConversionCache([])
    history = [chat, {"role": "user", "content": "next"}]
    for _ in range(3):
        expected = [as_message(copy.deepcopy(one), "", []) for one in history]
        assert freezer.convert(history) == expected
        history[0][data.draw(st.sampled_from(sorted(FIELDS)))] = data.draw(st.one_of(*FIELDS.values()))


def test_tool_calls_of_none():
    """API objects dumped to dicts often have `tool_calls: None`, which means no calls."""
    chat = {"role": "assistant", "content": "ok", "tool_calls": None}
    assert as_message(chat, "", []).tool_calls == ()
    assert ConversionCache([]).convert([chat])[0].content == "ok"
