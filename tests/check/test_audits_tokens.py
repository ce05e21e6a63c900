"""Audits that need the policy's tokenizer."""

import importlib.util
import json

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.check.settings import CheckSettings
from rolltrace.check.tokenizer import load_tokenizer
from rolltrace.errors import InputError
from rolltrace.store.create import create_run
from seeded_runs import SeededRun, assert_seeded, found, response_of

needs_tokenizers = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs tokenizers")


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer whose tokens are words; the beginning is token 0."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {"<s>": 0, "<unk>": 1, "the": 2, "answer": 3, "is": 4, "12": 5, "13": 6}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens(["<s>", "<unk>"])
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    return str(folder)


@pytest.fixture
def tokenized(seeded: SeededRun):
    """The run, in which the first response of each group of one env has its tokens."""

    def add(record):
        response_of(record)["content"] = "the answer is 12"
        record["steps"][0]["tokens"] = {"prompt": [0, 2, 3], "response": [2, 3, 4, 5], "logprobs": None}

    seeded.change(seeded.records(env="arithmetic", index=0), add)
    return seeded


@needs_tokenizers
def test_tokens_are_not_the_text(tokenized: SeededRun, tokenizer):
    """The text says 12, the tokens 13."""
    settings = CheckSettings(tokenizer=tokenizer)
    assert found(tokenized.check(settings)) == {}
    [one, *_] = tokenized.records(env="arithmetic", index=0)
    changed = tokenized.change([one], lambda record: record["steps"][0]["tokens"].update(response=[2, 3, 4, 6]))
    assert_seeded(tokenized, "tokens_are_not_the_text", changed, settings=settings)


@needs_tokenizers
def test_double_bos(tokenized: SeededRun, tokenizer):
    """The chat template and the tokenizer both add it."""
    settings = CheckSettings(tokenizer=tokenizer)
    [one, *_] = tokenized.records(env="arithmetic", index=0)
    changed = tokenized.change([one], lambda record: record["steps"][0]["tokens"].update(prompt=[0, 0, 2]))
    assert_seeded(tokenized, "double_bos", changed, settings=settings)


def test_without_a_tokenizer_these_do_not_look(tokenized: SeededRun):
    """They do not guess."""
    tokenized.change(
        tokenized.records(env="arithmetic", index=0),
        lambda record: record["steps"][0]["tokens"].update(prompt=[0, 0, 2]),
    )
    assert found(tokenized.check(only=["double_bos", "tokens_are_not_the_text"])) == {}


def test_a_tokenizer_that_cannot_be_loaded_is_an_error(tmp_path):
    """It says which package or file is missing."""
    with pytest.raises(InputError, match=r"pip install tokenizers|tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    create_run(tmp_path / "run").close()
    with pytest.raises(InputError, match=r"pip install tokenizers|tokenizer\.json"):
        check_run(tmp_path / "run", settings=CheckSettings(tokenizer=str(tmp_path)))
