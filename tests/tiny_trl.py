"""A tiny, randomly initialised model with a tokenizer and a chat template with tools, for the trainers of TRL."""

import os
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_MODE="offline", TOKENIZERS_PARALLELISM="0")

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
BAD_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b"\n</tool_call>'
END = "<|im_end|>"


def make_tokenizer(*tokens):
    """A byte-level tokenizer that is trained on the chat template of Qwen 3.

    Each text of `tokens`, and the calls above, is one token, so that a random model writes it.
    """
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", END]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([template, "What is 2 + 3?"], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token="<|endoftext|>")
    fast.add_tokens([CALL, BAD_CALL, *tokens])
    fast.chat_template = template
    return fast


def make_model(tokenizer, seed=0):
    """Two layers, the same for the same seed."""
    torch.manual_seed(seed)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        )
    )  # fmt: skip


def favour(tokenizer, strengths):
    """Generation settings that make some tokens more likely than the random model does."""
    bias = [[[tokenizer.convert_tokens_to_ids(text)], float(strength)] for text, strength in strengths.items()]
    return {"sequence_bias": bias}


def sums(count=8):
    """Questions with a reference answer."""
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} + 3?"}], "answer": n + 3} for n in range(count)]
    return datasets.Dataset.from_list(rows)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One number.
        b: The other.

    """
    return a + b
