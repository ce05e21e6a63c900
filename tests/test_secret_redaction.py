"""Secret-looking arguments: recognised by name and by value, and replaced by one placeholder."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.secret_redaction import PLACEHOLDER, is_secret_name, redact_mapping, redact_text

SECRET_NAMES = [
    "key", "api_key", "apikey", "API_KEY", "apiKey", "openai-api-key", "token", "hf_token", "access_token", "secret",
    "auth_tokens", "client_secret", "aws_secret_access_key", "password", "db_password", "passwd", "passphrase", "auth",
    "authorization", "Authorization", "credentials", "private_key", "bearer", "session_cookie", "api_keys",
    "keys",
]  # fmt: skip
PLAIN_NAMES = [
    "max_tokens", "tokens", "token_budget", "keyword", "sort_keys", "key_variable", "monkey", "answer_key", "eos_token",
    "stop_token", "sort_key", "tokenizer", "author", "data", "difficulty", "env", "",
]  # fmt: skip
SECRET_VALUES = [
    "sk-proj-abcdefgh12345678", "sk-ant-REDACTED", "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "hf_abcdefghijklmnopqrstuvwxyz", "AKIAABCDEFGHIJKLMNOP", "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name):
    """A name that ends in key, token and the like, or contains secret or password, is a secret's."""
    assert is_secret_name(name)
    assert redact_mapping({name: "abc", "x": 1}) == {name: PLACEHOLDER, "x": 1}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_plain_names(name):
    """Arguments about tokens, keywords and answer keys are recorded as they are."""
    assert not is_secret_name(name)
    arguments = {name: "abc"}
    assert redact_mapping(arguments) is arguments


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_secret_values(value):
    """A value that looks like a key is redacted under any name, at any depth, and inside a text."""
    assert redact_text(f"use {value} here") == f"use {PLACEHOLDER} here"
    assert redact_mapping({"url": [{"deep": value}]}) == {"url": [{"deep": PLACEHOLDER}]}


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("my.module:make,api_key=abc123,temperature=0.5", "my.module:make,api_key=[redacted],temperature=0.5"),
        ("openai:m@http://me:hunter2@host/v1", "openai:m@http://[redacted]@host/v1"),
        ("http://host/v1?key=abc&page=2", "http://host/v1?key=[redacted]&page=2"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer [redacted]"),
        ("mine:make,password=a, b,n=1", "mine:make,password=[redacted],n=1"),
        ('{"api_key": "abc", "n": 3}', '{"api_key": "[redacted]", "n": 3}'),
        ("scripted:noisy,correct=0.9", None),
        ("openai:MODEL@http://127.0.0.1:8000/v1,key_variable=MY_KEY", None),
        ("local:/models/sk.gguf,max_tokens=5", None),
    ],
)
def test_specifications(text, redacted):
    """In a policy's spec only the secret argument is replaced."""
    assert redact_text(text) == (text if redacted is None else redacted)


@pytest.mark.parametrize(
    ("given", "redacted"),
    [
        ({"Authorization": "Basic X", "cookie": ["QQ"]}, {"Authorization": PLACEHOLDER, "cookie": [PLACEHOLDER]}),
        ({"keys": {"openai": "QQ", "n": 1}}, {"keys": {"openai": PLACEHOLDER, "n": PLACEHOLDER}}),
        ([{"a": {"token": [["QQ"], 7]}}], [{"a": {"token": [PLACEHOLDER, PLACEHOLDER]}}]),
        ({"url": "http://h?key=QQ", "n": 1}, {"url": f"http://h?key={PLACEHOLDER}", "n": 1}),
        ({"inner": json.dumps({"cookie": ["QQ"]})}, {"inner": json.dumps({"cookie": [PLACEHOLDER]})}),
    ],
)
def test_json_text_is_redacted_like_the_value_it_holds(given, redacted):
    """A text that is a JSON object or list loses the same secrets as the object or list itself."""
    assert redact_mapping({"x": given}) == {"x": redacted}
    text = redact_text(f" {json.dumps(given, separators=(',', ':'))}\n")
    assert json.loads(text) == redacted
    assert redact_text(text) == text


def test_json_text_without_secrets_is_not_rewritten():
    """White space, escapes and the form of numbers stay if there is nothing to redact."""
    text = ' {"a":[1.50, "\\u00e9"],\t"max_tokens" : 1E3}\n'
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "around", ["{},", '{"n":1,{}', "[" * 100_000 + "{}", "[" * 80 + "{}" + "]" * 80, '[{},"' + "x" * 1_000_000 + '"]']
)
def test_text_that_cannot_be_read_as_json_is_redacted_by_pattern(around):
    """Damaged, deep or huge JSON, and objects that repeat a key, lose text under secret names."""
    text = redact_text(around.replace("{}", '{"token":"QQ","token":1}'))
    assert f'"token":"{PLACEHOLDER}"' in text
    assert "QQ" not in text


def test_numbers_and_empty_values_stay():
    """Numbers, bools, null and empty text are not secrets."""
    arguments = {"token": 3, "key": None, "password": "", "secret": False}
    assert redact_mapping(arguments) is arguments


NAMES = st.sampled_from(SECRET_NAMES + PLAIN_NAMES) | st.text(string.ascii_letters + "_", max_size=12)
VALUES = st.sampled_from(SECRET_VALUES) | st.text(max_size=30) | st.integers() | st.none()
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@given(st.dictionaries(NAMES, NESTED, max_size=5))
def test_redacting_twice_changes_nothing(arguments):
    """Redaction is idempotent, and the names stay in their places."""
    once = redact_mapping(arguments)
    assert redact_mapping(once) == once
    assert list(once) == list(arguments)
    assert not any(value in repr(once) for value in SECRET_VALUES)
