"""No key and no authorization header reaches a record, an error, a log or a terminal."""

import asyncio
import json
import logging
import pickle
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.misbehaving import Server, completion, drips, echoes_headers, replies, resets, says
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.endpoint import backoff
from rolltrace.policies.endpoint.api_key import WITHHELD, InMemoryApiKey, redact_key
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Request
from rolltrace.trace.message import Message
from stage import Stage, play

KEY = "sk-planted/0123456789-abcdef"
ESCAPED = "".join(f"\\u{ord(character):04x}" for character in KEY)


async def no_sleep(seconds):
    pass


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch):
    monkeypatch.setattr(backoff, "sleep", no_sleep)


def all_text(directory):
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


@pytest.mark.parametrize(
    "behaviour",
    [
        says(),
        echoes_headers(200),
        echoes_headers(400),
        echoes_headers(429),
        echoes_headers(500),
        replies(f"Bearer {KEY} is wrong", 401, content_type="text/plain"),
        replies('{"error": {"message": "' + ESCAPED + '"}}', 403),
        replies('{"choices": [{"message": {"content": "' + ESCAPED + '"}, "finish_reason": "stop"}]}'),
        replies(json.dumps({"message": KEY}).replace("/", "\\/"), 400),
        replies("moved", 302, headers={"Location": f"http://elsewhere.test/{KEY}"}),
        replies(f"not JSON, {KEY}"),
        resets(f'{{"you sent": "{KEY}'.encode()),
        drips([b'{"a": "sk-planted/01234', b'56789-abcdef"}']),
        replies('{"choices": [{"message": {"content": "' + ESCAPED + '"}, "finish_reason": "stop"}], "x": NaN}'),
        replies('{"choices": [{"message": {"content": "' + ESCAPED + ' \\ud800"}, "finish_reason": "stop"}]}'),
        replies(json.dumps(completion(f"You sent {KEY}.")).encode("utf-16")),
        replies(json.dumps(completion(f"You sent {KEY}.")).encode("utf-16").decode("latin-1").encode("utf-16")),
        replies(json.dumps({"error": {"message": KEY}}).encode("utf-32-be"), 400),
        replies("moved", 302, headers={"Location": f"http://{KEY}/x"}),
        replies("moved", 302, headers={"Location": f"http://{quote(KEY, safe='')}/x"}),
        says([{"type": "text", "text": KEY[:12]}, {"type": "text", "text": KEY[12:]}]),
        resets(f'{{"you sent": "{ESCAPED}'.encode()),
    ],
)
async def test_a_planted_key_is_found_nowhere(tmp_path, monkeypatch, capfd, caplog, behaviour):
    """Whatever a server does with the key, it appears in nothing that is written, logged or shown."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    async with Server(behaviour) as server:
        policy = EndpointPolicy("parrot", server.url, retries=1)
        stage = Stage(lambda _: ToolEnv([Message("user", "Hi.")], []))
        await play(tmp_path / "run", stage, policy)
        said = repr(policy) + policy.name + repr(vars(policy)) + pickle.dumps(policy).decode("latin-1")
        try:
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        except PolicyError as error:
            said += "".join(traceback.format_exception(error)) + repr(error.raw)
        await policy.close()
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    written = all_text(tmp_path)
    assert b"parrot" in written
    shown = capfd.readouterr()
    told = said + shown.out + shown.err + caplog.text
    for secret in (KEY, KEY[10:], f"Bearer {KEY}", KEY.replace("/", "\\/")):
        assert secret.encode() not in written
        assert secret not in told


@pytest.mark.parametrize("end", [b"", b"\r\nX-Broken\x00: 1\r\n\r\n"], ids=["cut", "malformed"])
async def test_a_key_in_broken_headers(monkeypatch, end):
    """A key that comes back in truncated or malformed headers is redacted too."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-Echo: Bearer " + KEY.encode() + end)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        policy = EndpointPolicy("parrot", f"http://127.0.0.1:{port}", retries=0)
        with pytest.raises(PolicyError) as raised:
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()
    told = "".join(traceback.format_exception(raised.value)) + repr(raised.value.raw)
    assert KEY not in told
    assert KEY[10:] not in told


@pytest.mark.parametrize("written", [KEY[:-1], KEY[:8], ESCAPED[:-1], ESCAPED[:-6], ESCAPED[:-5], KEY[:-2] + "\\u00"])
async def test_a_key_that_a_broken_connection_cut(monkeypatch, written):
    """A reply that is cut inside the key is withheld: all but the last character is as good as the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with Server(resets(f'{{"e": "{written}'.encode())) as server:
        policy = EndpointPolicy("parrot", server.url, retries=0)
        with pytest.raises(PolicyError) as raised:
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()
    assert raised.value.raw == WITHHELD.decode()


@pytest.mark.parametrize("host", ["sk-Planted-0123456789", "sk%2DPlanted%2D0123456789", "sk-\\u0050lanted-0123456789"])
async def test_a_redirect_to_the_key(host):
    """The key is redacted before the host name is lower-cased, in which form it would not match."""
    async with Server(replies("moved", 302, headers={"Location": f"http://{host}/x"})) as server:
        policy = EndpointPolicy("parrot", server.url, InMemoryApiKey("sk-Planted-0123456789"), retries=0)
        with pytest.raises(PolicyError, match="status 302: moved, a redirect: it is not followed"):
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_key_in_another_encoding(encoding):
    """The key is redacted in every encoding that a JSON parser would detect."""
    assert b"[key]" in redact_key(f'"{KEY}"'.encode(encoding), KEY)


def test_the_beginning_of_a_key_is_kept_in_a_whole_text():
    """Only a cut text may end in a part of the key, and is then withheld."""
    text = f"{KEY[:-1]}! {KEY[:9]}".encode()
    assert redact_key(text, KEY) == text
    assert redact_key(text, KEY, is_cut=True) == WITHHELD
    assert redact_key(text + b"!", KEY, is_cut=True) == text + b"!"
    assert redact_key(KEY[:7].encode(), KEY, is_cut=True) == KEY[:7].encode()


def test_a_text_of_too_many_escapes_is_withheld():
    """A text with more than a million escapes is withheld, because searching it would take seconds."""
    assert redact_key(b"\\u0061" * 1_000_001, KEY) == WITHHELD
    assert redact_key(b"\\n" * 2_000_000, KEY) == b"\\n" * 2_000_000


WAYS = st.sampled_from(["{}", "\\{}", "\\\\{}", "\\" * 20 + "{}", "u", "U"])


@given(st.lists(WAYS, min_size=len(KEY), max_size=len(KEY)))
def test_any_spelling_of_a_key_is_found(ways):
    """The key is redacted, or the text withheld, however its characters are escaped, also inside a JSON string."""
    digits = {"u": "\\u{:04x}", "U": "\\\\u{:04X}"}
    spelled = "".join(
        digits[way].format(ord(letter)) if way in digits else way.format(letter)
        for way, letter in zip(ways, KEY, strict=True)
    )
    redacted = redact_key(f"a {spelled} \\u00e9".encode(), KEY)
    assert redacted.replace(b"\\", b"") in (WITHHELD, b"a [key] u00e9")


async def test_the_key_is_read_when_it_is_sent(monkeypatch):
    """The key is read at each request; its variable can be configured; without a key no header is sent."""
    async with Server(says()) as server:
        policy = EndpointPolicy("parrot", server.url, key_variable="PARROT_KEY")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        for key in (None, "first-key", "second-key"):
            if key is not None:
                monkeypatch.setenv("PARROT_KEY", key)
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()
    sent = [headers.get("Authorization") for headers in server.headers]
    assert sent == [None, "Bearer first-key", "Bearer second-key"]


async def test_a_key_that_no_header_can_hold(monkeypatch):
    """A key with a line break is refused; the error names its variable and not its value."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nX-Injected: yes")
    policy = EndpointPolicy("parrot", "http://127.0.0.1:9")
    with pytest.raises(PolicyError, match="OPENAI_API_KEY") as raised:
        await policy.complete(Request(messages=(Message("user", "Hi."),)))
    assert "Injected" not in str(raised.value)


@pytest.mark.parametrize("slip", ["sk-hunter22", "hunter22/x", "", "2hunter22", "hunter22\n", "my hunter22"])
def test_a_key_in_the_place_of_its_variable(slip):
    """A value that is no variable name may be the key itself: it is refused, and the error does not repeat it."""
    with pytest.raises(InputError, match="the name of an environment variable") as raised:
        EndpointPolicy("parrot@http://127.0.0.1:9", key_variable=slip)
    assert "hunter22" not in str(raised.value)


async def test_a_key_in_memory():
    """A key given in memory wins over the environment, is never shown or pickled, and its error names no variable."""
    async with Server(says(), replies("no", 401)) as server:
        policy = EndpointPolicy("parrot", server.url, InMemoryApiKey(KEY), retries=0)
        await policy.complete(Request(messages=(Message("user", "Hi."),)))
        with pytest.raises(PolicyError, match=r"status 401: no$"):
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(policy) + repr(vars(policy))
    with pytest.raises(TypeError, match="key in memory"):
        pickle.dumps(policy)


async def test_a_refused_key_names_its_variable():
    """The error of a refused request names the environment variable to set."""
    async with Server(replies("no", 401)) as server:
        policy = EndpointPolicy("parrot", server.url, key_variable="PARROT_KEY")
        with pytest.raises(PolicyError, match="To do: set the key in the environment variable PARROT_KEY"):
            await policy.complete(Request(messages=(Message("user", "Hi."),)))
        await policy.close()


def test_a_word_in_the_place_of_a_key_is_no_secret():
    """`EMPTY` and other placeholders for servers without a key are not redacted from replies."""
    assert redact_key(b"The list is EMPTY.", "EMPTY") == b"The list is EMPTY."
    assert redact_key(b'{"a": "\\u00e9"}', KEY) == b'{"a": "\\u00e9"}'


@pytest.mark.parametrize("url", ["http://me:hunter22@host/v1", "https://hunter22@host", "http://host/v1?key=hunter22"])
def test_a_password_in_an_address_is_refused(url):
    """An address is recorded and shown, so one with a password is refused, and the error does not repeat it."""
    with pytest.raises(InputError, match="Expected a base URL without") as raised:
        EndpointPolicy(f"parrot@{url}")
    assert "hunter22" not in str(raised.value)


def test_an_address_without_a_scheme_is_not_repeated():
    """The text after the model's name may hold a password, so the error does not repeat it."""
    with pytest.raises(InputError, match="openai:MODEL@BASE_URL") as raised:
        EndpointPolicy("parrot@me:hunter22@host")
    assert "hunter22" not in str(raised.value)
