"""A key in the environment reaches the server, and nothing else: no file, no terminal."""

import json
import os
import subprocess
import sys
from base64 import b64encode

import duckdb
import pytest
import zstandard
from aiohttp import web

from loopback import chat, serving
from rolltrace.store.reader import RunReader

KEY = "sk-planted/Ab3+9=do-not-tell"
VARIABLE = "OPENAI_API_KEY"
PLAYED = 12
"""Each way of the server is met, as each rollout asks at least once."""


class Indiscreet:
    """Echoes the request with its headers, in a different way each time."""

    def __init__(self):
        self.keys = []
        self.asked = 0
        self.ways = (
            self.says, self.calls, self.refuses, self.fails, self.is_unauthorized, self.redirects, self.is_garbled,
            self.breaks_off, self.escapes, self.thinks, self.is_too_long, self.is_empty,
        )  # fmt: skip

    async def answer(self, request):
        self.keys.append(request.headers.get("Authorization"))
        told = json.dumps(dict(request.headers)) + f" Authorization: {request.headers.get('Authorization')}"
        self.asked += 1
        return await self.ways[self.asked % len(self.ways)](request, told)

    async def says(self, request, told):
        return web.json_response(chat(told), headers={"X-Echo": KEY})

    async def thinks(self, request, told):
        return web.json_response(chat("Answer: 7", reasoning_content=told, anything_else=told))

    async def calls(self, request, told):
        call = {"id": KEY, "type": "function", "function": {"name": KEY, "arguments": told}}
        return web.json_response(chat("", tool_calls=[call]))

    async def refuses(self, request, told):
        return web.json_response({"error": {"message": told, "code": KEY, "type": KEY}}, status=400)

    async def fails(self, request, told):
        return web.Response(text=told, status=500, reason="Bad key")

    async def is_unauthorized(self, request, told):
        return web.json_response({"detail": told}, status=401, headers={"WWW-Authenticate": f"Bearer {KEY}"})

    async def redirects(self, request, told):
        return web.Response(text=told, status=307, headers={"Location": f"http://127.0.0.1:9/{KEY}"})

    async def is_garbled(self, request, told):
        return web.Response(text='{"choices": [' + told, content_type="application/json")

    async def breaks_off(self, request, told):
        response = web.StreamResponse(headers={"Content-Length": "100000"})
        await response.prepare(request)
        await response.write(told.encode())
        request.transport.close()
        return response

    async def escapes(self, request, told):
        hidden = "".join(f"\\u{ord(sign):04x}" for sign in KEY)
        return web.Response(text=json.dumps(chat("HERE")).replace("HERE", hidden), content_type="application/json")

    async def is_too_long(self, request, told):
        return web.json_response({"error": {"message": f"maximum context length, {told}"}}, status=400)

    async def is_empty(self, request, told):
        return web.json_response({"choices": [], "said": told})


def spellings(key):
    """The key in every form: plain, escaped in JSON, and in other encodings."""
    plain = key.encode()
    return {plain, json.dumps(key).encode()[1:-1], key.replace("/", "\\/").encode(), b64encode(plain)}


def everything_in(folder):
    """The bytes of every file, decompressed too."""
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield path, data
            if path.suffix == ".zst":
                yield path, zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
            if path.suffix == ".parquet":
                rows = duckdb.execute("select * from read_parquet(?)", [str(path)]).fetchall()
                yield path, repr(rows).encode()


@pytest.mark.parametrize("env", ["calculator", "rubric"])
def test_no_key_is_written_or_shown(tmp_path, rolltrace, env):
    """Whatever a server does with the key it was sent, the key is in no file of the run and on no terminal."""
    indiscreet = Indiscreet()
    with serving(indiscreet.answer) as url:
        policy = f"openai:m@{url},retries=0,dialect=vllm"
        words = ["--groups", "1", "--group-size", str(PLAYED), "--trace-tokens", "--out", "run"]
        ran = subprocess.run(
            [sys.executable, "-m", "rolltrace", "run", env, "--policy", policy, *words],
            cwd=tmp_path, env=os.environ | {VARIABLE: KEY}, capture_output=True, check=False,
        )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stderr.decode()
    assert indiscreet.asked >= len(indiscreet.ways)
    assert set(indiscreet.keys) == {f"Bearer {KEY}"}
    rollouts = list(RunReader(tmp_path / "run").rollouts())
    assert len(rollouts) == PLAYED
    shown = [ran.stdout, ran.stderr, *look_at_everything(rolltrace, {rollout.group for rollout in rollouts})]
    assert b"[key]" in b"".join(shown)  # the placeholder is there, so the right places were searched
    written = list(everything_in(tmp_path))
    for spelling in spellings(KEY):
        assert not any(spelling in text for text in shown)
        assert not [path for path, data in written if spelling in data]


def look_at_everything(rolltrace, groups):
    """The output of every verb about the run."""
    for group in groups:
        yield printed(rolltrace("show", "run", group, "--full"))
        yield printed(rolltrace("show", "run", group, "--json"))
    for verb in ("show", "summary", "check"):
        yield printed(rolltrace(verb, "run"))
        yield printed(rolltrace(verb, "run", "--json"))
    yield printed(rolltrace("ls", "."))
    for table in ("rollouts", "steps", "messages", "calls", "scores", "runs", "ledger"):
        yield printed(rolltrace("query", "run", f"select * from {table}"))
    yield printed(rolltrace("compact", "run"))


def printed(result):
    assert result.exit_code in (0, 1), result.output
    return result.output.encode()


@pytest.mark.parametrize("role", ["policy", "grader"])
def test_a_key_in_the_place_of_its_variable(tmp_path, rolltrace, caplog, role):
    """A key in place of its variable's name is refused before anything is written, and not repeated."""
    policy = f"{role}=openai:m@http://127.0.0.1:9,key_variable={KEY}"
    refused = rolltrace("run", "rubric", "--policy", policy, "--out", "run")
    assert refused.exit_code == 2, refused.output
    assert not list(tmp_path.rglob("*"))
    told = (refused.output + caplog.text).encode()
    assert b"the name of an environment variable" in told
    assert not any(spelling in told for spelling in spellings(KEY))
