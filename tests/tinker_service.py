"""A stand-in for the service of tinker: it samples what a function answers, and trains nothing."""

import asyncio
import itertools
import threading
from dataclasses import dataclass, field

import numpy
import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.rl import rollouts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

MODEL = "rolltrace/stand-in"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["What is 12 + 30? The answer is 42.", "User: hello\n\nAssistant: Guess: 7", "[4] Player 0 wins."] * 4
CUT, MALFORMED = "<cut>", "<malformed>"
"""At the end of an answer: the token limit ends it; it ends without the sign that ends a turn."""


class LockedTokenizer(PreTrainedTokenizerFast):
    """Used by one thread at a time: fast tokenizers raise "Already borrowed" otherwise, recorded or not."""

    lock = threading.RLock()

    def encode(self, *args, **kwargs):
        """As the base class."""
        with self.lock:
            return super().encode(*args, **kwargs)

    def decode(self, *args, **kwargs):
        """As the base class."""
        with self.lock:
            return super().decode(*args, **kwargs)


def make_tokenizer():
    """A tokenizer that is trained here, of bytes and a few merges."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return LockedTokenizer(tokenizer_object=bpe, eos_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])


tokenizer_utils.register_tokenizer(MODEL, make_tokenizer)


def make_renderer(name="qwen3_disable_thinking"):
    """A renderer of tinker-cookbook for the tokenizer."""
    return renderers.get_renderer(name, tokenizer_utils.get_tokenizer(MODEL), model_name=MODEL)


@dataclass
class Sampled:
    """What the service sampled."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    stop_reason: str


_numbers = itertools.count(1)
"""Each token that is sampled has another log-probability."""


class SamplingClient:
    """Samples what `answer` says to the text of the prompt; an exception that it returns is raised."""

    def __init__(self, answer, log=None):
        self.answer = answer
        self.log = [] if log is None else log
        self._lock = threading.Lock()

    def __reduce__(self):
        return SamplingClient, (self.answer,)

    async def sample_async(self, prompt, num_samples, sampling_params):
        """Answer one prompt."""
        tokenizer = tokenizer_utils.get_tokenizer(MODEL)
        text = self.answer(tokenizer.decode(prompt.to_ints()))
        if isinstance(text, BaseException):
            raise text
        if hasattr(text, "__await__"):
            text = await text
        reason = "length" if text.endswith(CUT) else "stop"
        if reason == "stop" and not text.endswith(MALFORMED):
            [stop] = sampling_params.stop
            text += stop if isinstance(stop, str) else tokenizer.decode([stop])
        tokens = tokenizer.encode(text.removesuffix(CUT).removesuffix(MALFORMED), add_special_tokens=False)
        if len(tokens) > sampling_params.max_tokens:
            tokens, reason = tokens[: sampling_params.max_tokens], "length"
        with self._lock:
            logprobs = [-next(_numbers) / 1024 for _ in tokens]  # exact as float32, too
            self.log.append(Sampled(prompt.to_ints(), tokens, logprobs, reason))
        arrays = {"tokens_np": numpy.array(tokens, "int32"), "logprobs_np": numpy.array(logprobs, "float32")}
        return tinker.SampleResponse(sequences=[tinker.SampledSequence(reason, str(len(self.log)), **arrays)])


class _Future:
    def __init__(self, value):
        self.value = value

    async def result_async(self):
        return self.value


@dataclass
class _Path:
    path: str


@dataclass
class TrainingClient:
    """Remembers the data that it was to train on."""

    answer: object
    sampled: list = field(default_factory=list)
    data: list = field(default_factory=list)

    async def forward_backward_async(self, data, loss_fn, loss_fn_config=None):
        """The trainer's log-probabilities are those of the sampler, less 1/8."""
        self.data.append(data)
        outputs = []
        for datum in data:
            logprobs = datum.loss_fn_inputs["logprobs"].to_torch() - 0.125
            outputs.append({"logprobs": tinker.TensorData.from_torch(logprobs)})
        return _Future(
            tinker.ForwardBackwardOutput(loss_fn_output_type="x", loss_fn_outputs=outputs, metrics={"loss:sum": 0.0})
        )

    async def optim_step_async(self, adam_params):
        """Do nothing."""
        return _Future(tinker.OptimStepResponse())

    async def save_state_async(self, name, ttl_seconds=None):
        """Save nothing."""
        return _Future(_Path(f"tinker://stand-in/weights/{name}"))

    async def save_weights_for_sampler_async(self, name, ttl_seconds=None):
        """Save nothing."""
        return _Future(_Path(f"tinker://stand-in/sampler/{name}"))

    async def save_weights_and_get_sampling_client_async(self):
        """The sampler of the present weights."""
        return self.create_sampling_client("")

    def create_sampling_client(self, path):
        """A sampler; all of them share one log."""
        return SamplingClient(self.answer, self.sampled)


class ServiceClient:
    """Stands in for `tinker.ServiceClient`."""

    def __init__(self, answer):
        self.training_client = TrainingClient(answer)

    def __call__(self, **settings):
        """What `tinker.ServiceClient(...)` makes."""
        return self

    async def create_lora_training_client_async(self, model, rank, user_metadata=None):
        """The only training client."""
        return self.training_client


def play(builder, policy, **settings):
    """Play one group with tinker-cookbook; the exception if it raised."""
    completer = rollouts.TinkerTokenCompleter(SamplingClient(policy), max_tokens=160)

    async def main():
        try:
            return await rollouts.do_group_rollout(builder, completer, **settings)
        except Exception as error:  # noqa: BLE001
            return error

    return asyncio.run(main())
