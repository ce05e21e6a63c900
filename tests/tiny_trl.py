"""A tiny, randomly initialised model with a tokenizer and tools for TRL, and trainers that keep what they saw."""

import copy
import os
from pathlib import Path

import pytest

import rolltrace

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


class Spy:
    """Keeps a copy of what the methods of a trainer return, for comparison."""

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        self.__dict__.setdefault("seen", []).append({"prompts": prompts, "generated": copy.deepcopy(generated)})
        return generated

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self.seen[-1]["rewards"] = rewards.clone()
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.seen[-1].update(advantages=output["advantages"].clone(), output=output)
        return output

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.seen[-1].setdefault("logps", []).append((args[1].clone(), result[0].detach().clone()))
        return result


class SpiedGRPO(Spy, trl.GRPOTrainer):
    """A `GRPOTrainer` that keeps what it saw."""


class SpiedRLOO(Spy, trl.RLOOTrainer):
    """An `RLOOTrainer` that keeps what it saw."""


def rollouts_of(run):
    """The rollouts, with their scores, in the order of their places."""
    assert run.flush()
    found = rolltrace.open_run(run.path).rollouts()
    return sorted(found, key=lambda rollout: (rollout.split, rollout.iteration, int(rollout.group), rollout.index))


def score(rollout, name):
    """The score of this name, which there is once."""
    [found] = [one for one in rollout.scores if one.name == name]
    return found


def tokens_of(rollout):
    """The prompt of the first step, and everything after it as one list of ids, with a mask of what was sampled."""
    first = rollout.prompt_tokens(0)
    ids, mask = [], []
    for step in rollout.steps:
        between = rollout.prompt_tokens(step.step)[len(first) + len(ids) :]
        assert list(rollout.prompt_tokens(step.step)[: len(first) + len(ids)]) == [*first, *ids]
        ids += [*between, *step.tokens.response]
        mask += [0] * len(between) + [1] * len(step.tokens.response)
    return list(first), ids, mask


def logps_of(seen, prompt_ids, ids, mask):
    """The log-probabilities that the trainer computed first for these ids, where they were sampled."""
    for rows, values in seen["logps"]:
        for row, logps in zip(rows.tolist(), values.tolist(), strict=True):
            start = len(row) - len(logps)
            if row[start - len(prompt_ids) : start] == prompt_ids and row[start : start + len(ids)] == ids:
                return [value for value, bit in zip(logps, mask, strict=False) if bit]
    raise AssertionError("the trainer did not compute them")
