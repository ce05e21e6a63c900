"""The built-in `prompts`."""

import json
import math
import pickle

import pytest

from rolltrace.envs.prompts import PromptsTasks
from rolltrace.errors import DataError
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, ToolCall


def write(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def builders(tasks, episodes=1):
    return [tasks.builder(number, episodes=episodes, seed=0) for number in range(tasks.count)]


def test_the_shipped_prompts_are_varied():
    """The shipped prompts are many and all different, and some of them are conversations."""
    shipped = builders(PromptsTasks())
    assert len(shipped) >= 24
    assert len({builder.task for builder in shipped}) == len(shipped)
    assert len({builder.messages for builder in shipped}) == len(shipped)
    assert {len(builder.messages) for builder in shipped} >= {1, 2, 3}
    assert all(builder.messages[-1].role == "user" for builder in shipped)


def test_a_file_of_ones_own(tmp_path):
    """A row has a prompt or messages; other keys go to the task's data, and not to the policy."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "A door.", "tool_call_id": "c"},
    ]
    path = write(tmp_path, {"id": 7, "prompt": "Hi.", "source": "me"}, {"id": "chat", "messages": chat})
    one, two = builders(PromptsTasks(data=path, system="Be kind."), episodes=3)
    assert (one.env, one.task, one.episodes, one.task_data) == ("prompts", "7", 3, {"source": "me"})
    assert one.messages == (Message("system", "Be kind."), Message("user", "Hi."))
    assert one.env_args == {"data": path, "system": "Be kind."}
    assert two.messages == (
        Message("system", "Be brief."),
        Message("user", "Hello."),
        Message("assistant", "", tool_calls=(ToolCall("look", "{}", "c"),)),
        Message("tool", "A door.", tool_call_id="c"),
    )
    assert pickle.loads(pickle.dumps(two)) == two


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"id": "b", "question": "q"},
            "got the columns `id`, `question`: say which one it is, such as --arg prompt=question",
        ),
        ({"id": "b", "prompt": "q", "messages": [{"role": "user", "content": "q"}]}, "got both"),
        ({"id": "b", "prompt": ""}, "expected `str` of length >= 1 - at `prompt`"),
        ({"id": "b", "prompt": 3}, "got `int` - at `prompt`"),
        ({"id": "b", "messages": []}, "expected at least one message in `messages`, got none"),
        ({"id": "b", "messages": ["Hi."]}, "expected `object`, got `str` - at `messages[0]`"),
        ({"id": "b", "messages": [{"content": "q"}]}, "expected a `role` in `messages[0]`, got None"),
        ({"id": "b", "messages": [{"role": 3, "content": "q"}]}, "expected a `role` in `messages[0]`, got 3"),
        ({"id": "b", "messages": [{"role": "user", "content": 3}]}, "at messages[0].content"),
        ({"id": "a", "prompt": "q"}, "expected a new `id`, got 'a', which line 1 has"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    """The error names file and line of a row that is no prompt."""
    path = write(tmp_path, {"id": "a", "prompt": "q"}, row)
    with pytest.raises(DataError) as caught:
        PromptsTasks(data=path)
    assert "own.jsonl:2: " in str(caught.value)
    assert message in str(caught.value)


def test_the_contract_is_kept():
    """`check_env` finds no violation."""
    assert check_env(builders(PromptsTasks(), episodes=2)[-1]) == []


def test_a_teachers_late_scores(tmp_path):
    """A run is played without a score; then each rollout gets its KL per token, which SQL joins to it."""
    policy = ScriptedReplies(lambda request: f"reply to {len(request.messages)}")
    summary = play(PromptsTasks(), policy, out=tmp_path / "run", groups=3, group_size=2)
    assert (summary.mean_reward, summary.rewarded) == (0.0, 6)
    run = open_run(tmp_path / "run")
    expected = {}
    with create_run(tmp_path / "run", join=True) as writer:
        for number, rollout in enumerate(run.rollouts(limit=None)):
            per_token = [0.5 * number, 0.25, math.inf]
            writer.score(rollout.id, "teacher_kl", sum(per_token[:2]), data={"kl": per_token}, producer="teacher")
            expected[rollout.id] = 0.5 * number + 0.25
    assert len(expected) == 6
    found = list(
        run.sql(
            "select rollouts.id, rollouts.reward, scores.value from rollouts "
            "join scores on scores.rollout = rollouts.id where scores.name = 'teacher_kl'"
        )
    )
    assert {row[0]: row[2] for row in found} == expected
    assert {row[1] for row in found} == {0.0}  # a score of another name does not change the reward
    scores = list(run.scores(where="name = 'teacher_kl'", limit=None))
    assert {score.rollout: score.data["kl"][0] + 0.25 for score in scores} == expected
    assert {score.producer for score in scores} == {"teacher"}
