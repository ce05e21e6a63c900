"""What a bridge costs: CPU time of a framework's own rollouts with and without the record, in alternating rounds.

Name the frameworks to measure; each must be installed. One function per framework.
"""

import asyncio
import contextlib
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import measure
import proxy

import rolltrace


def alternate(rounds: int, play: Callable[[bool], float]) -> dict[str, Any]:
    """CPU seconds of a rollout by `play`, which is told whether to record, as medians of both ways."""
    measure.warm_allocator()
    play(False), play(True)  # what is imported or made once
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        records = bool(number % 2)
        times[records].append(play(records))
    without, recorded = measure.median(times[False]), measure.median(times[True])
    return {
        "a rollout, ms": 1000 * without,
        "the record, ms": 1000 * max(0.0, recorded - without),
        "share": max(0.0, recorded / without - 1),
    }


def openai(folder: Path, quick: bool) -> dict[str, Any]:
    """Rollouts of three calls of the client; a server in a process of its own answers at once."""
    import openai as package

    rollouts = 5 if quick else 200
    words = measure.MarkovText()
    prompts = [words.words(130) for _ in range(3)]
    with (
        proxy.started(proxy.__file__, "--serve") as (address, _),
        package.OpenAI(base_url=address, api_key="none") as client,
        rolltrace.create_run(folder / "run") as run,
    ):

        def play(records: bool) -> float:
            recording = rolltrace.record_calls(client) if records else None
            started = time.process_time()
            for index in range(rollouts):
                history: list[Any] = []
                rollout = run.rollout(env="e", task="t", group="g", index=index) if records else None
                with rollout or contextlib.nullcontext():
                    for prompt in prompts:
                        history += [{"role": "user", "content": prompt}]
                        answer = client.chat.completions.create(model="m", messages=history)
                        history += [{"role": "assistant", "content": answer.choices[0].message.content}]
            run.flush()
            if recording is not None:
                recording.undo()
            return (time.process_time() - started) / rollouts

        return alternate(1 if quick else 15, play)


def verifiers(folder: Path, quick: bool) -> dict[str, Any]:
    """Episodes of three turns with a harness in the process, which is the least that verifiers can take."""
    from rolltrace.bridges.verifiers import record

    vf, env = _verifiers_env()
    rollouts = 2 if quick else 40

    async def serve_and_play(records: bool) -> float:
        from aiohttp import web

        async def answer(request: web.Request) -> web.Response:
            await request.read()
            message = {"role": "assistant", "content": words.words(130)}
            usage = {"prompt_tokens": 400, "completion_tokens": 200, "total_tokens": 600}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            fields = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
            return web.json_response({**fields, "choices": [choice], "usage": usage})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        server = web.AppRunner(app, access_log=None)
        await server.setup()
        await web.TCPSite(server, "127.0.0.1", 0).start()
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{server.addresses[0][1]}/v1", api_key_var="NO_KEY")
        context = vf.ModelContext(model="m", client=client)
        recording = record(env, run) if records else None
        try:
            async with env.serving():
                [task] = env.taskset
                started = time.process_time()
                for slot in env.slots(task, rollouts):
                    await env.run_slot(slot, context)
                run.flush()
                return (time.process_time() - started) / rollouts
        finally:
            if recording is not None:
                recording.undo()
            await server.cleanup()

    words = measure.MarkovText()
    with rolltrace.create_run(folder / "run") as run:
        return alternate(1 if quick else 15, lambda records: asyncio.run(serve_and_play(records)))


def _verifiers_env() -> tuple[Any, Any]:
    """verifiers, and an environment of one task whose harness asks three times."""
    import httpx
    import verifiers.v1 as vf

    class Task(vf.Task[vf.TaskData]):
        @vf.reward
        async def letters(self, trace: Any) -> float:
            return float(len(trace.last_reply))

    class Taskset(vf.Taskset[Task, vf.TasksetConfig]):
        def load(self) -> Iterator[Any]:
            yield Task(vf.TaskData(name="t", prompt="Tell me something."))

    class Harness(vf.Harness[vf.HarnessConfig]):
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            messages = [{"role": "user", "content": data.prompt}]
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as client:
                for _ in range(3):
                    body = {"model": "m", "messages": messages}
                    answer = await client.post(f"{endpoint}/chat/completions", json=body)
                    messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    module: Any = ModuleType("bench_tasks")
    module.__spec__ = vf.__spec__
    module.Taskset, module.Harness, module.__all__ = Taskset, Harness, ["Taskset", "Harness"]
    sys.modules["bench_tasks"] = module
    logging.getLogger("verifiers").setLevel(logging.ERROR)
    agent = {"runtime": {"type": "subprocess"}}
    return vf, vf.load_environment(vf.resolve_env_config({"taskset": {"id": "bench_tasks"}, "agent": agent}))


def tinker(folder: Path, quick: bool) -> dict[str, Any]:
    """Batches of the training loop up to the training data, with a service that answers at once with 200 tokens."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDataset
    from tinker_cookbook.rl import rollouts, train

    from rolltrace.bridges.tinker import record
    from tinker_service import SamplingClient, make_renderer

    logging.disable()
    rounds, groups = (1, 1) if quick else (15, 8)
    words, renderer = measure.MarkovText(), make_renderer()
    dataset = ArithmeticDataset(batch_size=groups, renderer=renderer, group_size=8)
    completer = rollouts.TinkerTokenCompleter(SamplingClient(lambda _: words.words(45)), max_tokens=1_024)

    async def step(builders: Sequence[Any]) -> None:
        played = await asyncio.gather(*[rollouts.do_group_rollout(one, completer) for one in builders])
        await train.prepare_minibatch(builders, list(played), renderer.tokenizer, None, 0.0, 0.0)

    def play(records: bool) -> float:
        recorded = record(dataset, run) if records else dataset
        builders = recorded.get_batch(0)
        started = time.process_time()
        asyncio.run(step(builders))
        run.flush()
        seconds = time.process_time() - started
        if records:
            recorded.undo()
        return seconds / (8 * groups)

    with rolltrace.create_run(folder / "run", trace=rolltrace.Recording(tokens=True)) as run:
        return alternate(rounds, play)


def trl(folder: Path, quick: bool) -> dict[str, Any]:
    """Steps of a `GRPOTrainer` with a model of two layers, 32 completions of 128 tokens each, and all token ids."""
    from rolltrace.bridges.trl import record

    rollouts = 4 if quick else 32
    trainer = _grpo_trainer(folder, rollouts, 8 if quick else 128)
    with rolltrace.create_run(folder / "run", trace=rolltrace.Recording(tokens=True)) as run:

        def play(records: bool) -> float:
            recording = record(trainer, run) if records else None
            started = time.process_time()
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.train()
            run.flush()
            seconds = time.process_time() - started
            if recording is not None:
                recording.undo()
            return seconds / rollouts

        return alternate(1 if quick else 15, play)


def _grpo_trainer(folder: Path, rollouts: int, length: int) -> Any:
    """A trainer of one step. No completion ends before its limit."""
    warnings.simplefilter("ignore")
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    letters = {text: number for number, text in enumerate(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    base = Tokenizer(models.BPE(vocab=letters, merges=[]))
    base.pre_tokenizer, base.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, eos_token="<end>", pad_token="<end>")  # noqa: S106 - no secret
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(
        Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=0)
    )
    words = measure.MarkovText()
    config = GRPOConfig(
        str(folder / "out"), per_device_train_batch_size=rollouts, num_generations=4, max_completion_length=length,
        max_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        generation_kwargs={"suppress_tokens": [0]},
    )  # fmt: skip

    def letters_a(completions: Sequence[str], **columns: Any) -> list[float]:  # noqa: ARG001 - as TRL calls it
        return [float(text.count("a")) for text in completions]

    dataset = Dataset.from_list([{"prompt": words.words(30)} for _ in range(8)])
    return GRPOTrainer(model, letters_a, args=config, train_dataset=dataset, processing_class=tokenizer)


FRAMEWORKS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "openai": openai, "tinker": tinker, "trl": trl, "verifiers": verifiers,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = measure.parser(__doc__)
    parser.add_argument("frameworks", nargs="+", choices=FRAMEWORKS, metavar="FRAMEWORK")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.frameworks:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"framework": name, **FRAMEWORKS[name](Path(folder), options.quick)})
    tables = {"CPU time of a rollout, and of its record": rows}
    report = {
        "benchmark": "bridges", **measure.machine(), "figures": tables,
        "parameters": {"frameworks": options.frameworks},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
