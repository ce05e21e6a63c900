"""The base URL of an endpoint: validated, normalized and safe to show."""

import ipaddress
import re
from urllib.parse import urlsplit

from rolltrace.errors import InputError

_FORM = "openai:MODEL@BASE_URL, such as openai:qwen3-8b@http://127.0.0.1:8000/v1"
_ADDRESS = re.compile(r"(?P<model>.+?)@(?P<url>https?://.*)", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_HOST_CHARS = 253
_ENDING = "/chat/completions"


def split_spec(address: str) -> tuple[str, str]:
    """The model and the base URL of `MODEL@BASE_URL`. Errors do not repeat the URL, which may have a password."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        model = address.partition("@")[0]
        raise InputError(f"Expected a policy as {_FORM}, got no `@http://` or `@https://` after the model {model!r}.")
    return match["model"], match["url"]


def normalize_base_url(base_url: str) -> str:
    """The URL to which `/chat/completions` is appended. `/v1` is added if there is no path."""
    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(
            f"Expected a base URL such as http://127.0.0.1:8000/v1, got an invalid one: {error}."
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError("Expected a base URL that begins with http:// or https:// and names a host.")
    if "@" not in parts.netloc and not _is_host(host):
        raise InputError(f"Expected a base URL that names a host, such as http://127.0.0.1:8000/v1, got {host!r}.")
    if "@" in parts.netloc:
        raise InputError(
            f"Expected a base URL without a user and password, got one for {host}: "
            "put the key into an environment variable, and pass its name as key_variable."
        )
    if parts.query or parts.fragment:
        raise InputError(f"Expected a base URL without `?` and `#`, got one for {host}: it is recorded and shown.")
    path = parts.path.rstrip("/").removesuffix(_ENDING)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _is_host(host: str) -> bool:
    if ":" in host:  # urlsplit requires brackets around it
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    try:
        plain = host.encode("idna").decode()
    except UnicodeError:
        return False
    return len(plain) <= _MAX_HOST_CHARS and all(map(_LABEL.fullmatch, plain.removesuffix(".").split(".")))


def server_root(base_url: str) -> str:
    """The URL of a server's routes that are not part of the OpenAI API."""
    return base_url.removesuffix("/v1")
