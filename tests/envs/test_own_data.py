"""User data: formats, columns, answers and ids, through the environments that read them."""

import csv
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.preference import PreferenceTasks
from rolltrace.envs.problem_env import ProblemEnv
from rolltrace.envs.problems import AnswerFormat, ProblemsTasks, final_answer
from rolltrace.envs.prompts import PromptsTasks
from rolltrace.envs.registry import load_env
from rolltrace.envs.rubric import RubricTasks
from rolltrace.errors import DataError, InputError, UnknownNameError
from rolltrace.graders.answer_check import auto_score
from rolltrace.policies.policy import to_completion
from rolltrace.query.run import open_run
from rolltrace.testing.check_env import check_env

pa = pytest.importorskip("pyarrow")  # the core alone is without it
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.core

SHAPES = Path(__file__).parent / "shapes"
GSM8K = ["gsm8k.jsonl", "gsm8k.parquet", "gsm8k.csv", "gsm8k_saved"]
MATH = ["math.jsonl", "math.parquet"]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


WRITERS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet}


def groups(tasks):
    return [tasks.builder(number, episodes=1, seed=0) for number in range(tasks.count)]


class Dataset:
    """The interface of a `datasets.Dataset`: a length, columns, and rows in a format."""

    _fingerprint = "0123abcd"

    def __init__(self, rows, form="numpy"):
        self.rows = rows
        self.form = form
        self.column_names = list(rows[0])

    def __len__(self):
        return len(self.rows)

    def with_format(self, form):
        return Dataset(self.rows, form)

    def __iter__(self):
        assert self.form is None, "rows are read as plain Python values"
        return iter(self.rows)


# Published shapes


@pytest.mark.parametrize("name", GSM8K)
def test_gsm8k_loads_as_it_is(name):
    """The reference is the text after `####`, and the lines before it are the solution."""
    tasks = ProblemsTasks(data=str(SHAPES / name))
    assert [problem.answer for problem in tasks.problems] == ["216", "12,000", "-3"]
    assert tasks.problems[2].solution == "She has 9-12=<<9-12=-3>>-3 apples."
    first = groups(tasks)[0]
    assert first.question.startswith("A ferry carries 48 cars")
    assert first.task_data["check"] == "number"
    assert first.task == groups(ProblemsTasks(data=str(SHAPES / GSM8K[0])))[0].task


@pytest.mark.parametrize("name", MATH)
def test_math_loads_as_it_is(name):
    """The reference is the content of the last box of the solution; level and type go to the task's data."""
    tasks = ProblemsTasks(data=str(SHAPES / name))
    assert [problem.answer for problem in tasks.problems] == ["7", r"\frac{1}{4}", "5"]
    second = groups(tasks)[1]
    assert second.task_data["level"] == "Level 2"
    assert second.task_data["type"] == "Counting & Probability"
    assert second.task_data["solution"].endswith(r"$\boxed{\frac{1}{4}}$.")
    assert second.question.startswith("A fair die")


def test_math_with_a_column_of_answers(tmp_path):
    """With a column `answer` beside `solution`, the answer is the reference."""
    row = {"problem": "2 + 2?", "solution": r"It is $\boxed{3}$, no, $4$.", "answer": "4", "unique_id": "test/1"}
    path = write_jsonl(tmp_path / "math.jsonl", [row])
    [problem] = ProblemsTasks(data=path, id="unique_id").problems
    assert (problem.id, problem.answer, problem.solution) == ("test/1", "4", row["solution"])


def test_a_solution_without_an_answer_in_it_is_no_answer(tmp_path):
    """Without a column `answer`, a solution must end with an answer."""
    path = write_jsonl(tmp_path / "math.jsonl", [{"problem": "2 + 2?", "solution": "Count."}])
    with pytest.raises(DataError, match=r"math\.jsonl:1: expected an answer with `\\boxed\{ANSWER\}` in it, got none"):
        ProblemsTasks(data=path)


def test_a_saved_dataset_with_splits():
    """A split is chosen by name; without one, or with a wrong one, the error lists the splits."""
    path = str(SHAPES / "math_saved")
    assert [problem.answer for problem in ProblemsTasks(data=path, split="test").problems] == ["5"]
    for split in (None, "validation"):
        with pytest.raises(DataError, match=f"split=NAME, got {split or 'none'}: it has train, test"):
            ProblemsTasks(data=path, split=split)
    with pytest.raises(InputError, match="several splits beside split=train"):
        ProblemsTasks(data=str(SHAPES / "gsm8k_saved"), split="train")
    with pytest.raises(InputError, match="several splits beside split=train"):
        ProblemsTasks(data=str(SHAPES / "gsm8k.csv"), split="train")


def test_a_dataset_object():
    """A `Dataset` object is read directly, and the record names it."""
    rows = [{"problem": "1 + 1?", "solution": r"\boxed{2}"}, {"problem": "2 + 2?", "solution": r"\boxed{4}"}]
    tasks = ProblemsTasks(data=Dataset(rows))
    assert [problem.answer for problem in tasks.problems] == ["2", "4"]
    assert tasks.args["data"].endswith("Dataset of 2, fingerprint 0123abcd")
    splits = {"train": Dataset(rows), "test": Dataset(rows[1:])}
    assert ProblemsTasks(data=splits, split="test").count == 1
    assert ProblemsTasks(data={"train": Dataset(rows)}).count == 2
    with pytest.raises(DataError, match="it has train, test"):
        ProblemsTasks(data=splits)
    assert ProblemsTasks(data=rows).args["data"] == "list of 2"


@pytest.mark.parametrize("data", [7, b"rows", iter([]), object(), ["a"], [{"question": "q", "answer": {}}]])
def test_what_is_no_data_is_refused(data):
    """The error says what is expected; a streamed dataset must be materialised first."""
    with pytest.raises(InputError, match="xpected"):
        ProblemsTasks(data=data)


def test_several_files_by_a_pattern(tmp_path):
    """A pattern matches files, sorted by name; a file whose name contains pattern characters matches itself."""
    for name, question in (("b.parquet", "second?"), ("a.parquet", "first?")):
        write_parquet(tmp_path / name, [{"question": question, "answer": "1"}])
    assert [row.question for row in ProblemsTasks(data=f"{tmp_path}/*.parquet").problems] == ["first?", "second?"]
    odd = write_parquet(tmp_path / "[ab]'*.parquet", [{"question": "odd?", "answer": "1"}])
    assert [row.question for row in ProblemsTasks(data=odd).problems] == ["odd?"]
    with pytest.raises(DataError, match="expected files that match this pattern, but no file does"):
        ProblemsTasks(data=f"{tmp_path}/*.csv")


# Columns


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_are_mapped(tmp_path, kind, rolltrace_command):
    """`--arg question=problem --arg answer=solution` works in every format, and the record makes the same tasks."""
    rows = [{"problem": f"{n} + {n}?", "solution": str(2 * n), "uid": f"u{n}", "why": "sums"} for n in range(4)]
    path = WRITERS[kind](tmp_path / f"own.{kind}", rows)
    columns = ["--arg", "question=problem", "--arg", "answer=solution", "--arg", "id=uid"]
    rolltrace_command("run", "problems", "--arg", f"data={path}", *columns, "--groups", 4, "--out", tmp_path / "run")
    with open_run(tmp_path / "run") as run:
        rollouts = list(run.rollouts(limit=None))
    assert {rollout.task for rollout in rollouts} == {"u0", "u1", "u2", "u3"}
    assert all(rollout.task_data["why"] == "sums" for rollout in rollouts)
    assert all("uid" not in rollout.task_data for rollout in rollouts)
    again = load_env(rollouts[0].env, rollouts[0].env_args)
    assert [group.task for group in groups(again)] == ["u0", "u1", "u2", "u3"]


def test_a_field_inside_a_column():
    """`column.field` reads from a struct, and a list in it is several accepted answers."""
    tasks = ProblemsTasks(
        data=str(SHAPES / "chat.parquet"), question="reward_model.style", answer="reward_model.ground_truth"
    )
    assert groups(tasks)[1].reference == ("mercury", "gallium")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected a column `question`, got the columns HERE: say which one it is, such as --arg question=query."),
        (
            {"question": "query"},
            "expected a column `answer` or `solution`, got the columns HERE: say which one it is, such as",
        ),
        (
            {"question": "qery", "answer": "target"},
            "expected the column `qery` that question=qery names, got the columns HERE. Did you mean question=query?",
        ),
        ({"question": "query", "answer": "target", "id": "uid"}, "expected the column `uid` that id=uid names"),
        ({"question": "query", "answer": "target.x"}, "expected the column `target.x`"),
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_missing_column_is_reported_with_the_existing_ones(tmp_path, kind, arguments, message):
    """The error lists the existing columns and the mapping to give."""
    path = WRITERS[kind](tmp_path / f"own.{kind}", [{"query": "1 + 1?", "target": "2"}])
    with pytest.raises(DataError) as caught:
        ProblemsTasks(data=path, **arguments)
    assert message.replace("HERE", "`query`, `target`") in str(caught.value)


@pytest.mark.parametrize("column", ["", [], 5, ["a", 3]])
def test_the_name_of_a_column_is_a_text(column):
    """A column name that is not text is refused."""
    with pytest.raises(InputError, match="Expected the name of a column as question"):
        ProblemsTasks(data=[{"question": "q", "answer": "a"}], question=column)


def test_prompts_of_other_columns(tmp_path):
    """`prompts`, `rubric` and `preference` read the named column only."""
    rows = [{"question": "Why?", "messages": "none of it", "checks": '["Says why."]'}]
    path = write_csv(tmp_path / "own.csv", rows)
    for tasks in (
        PromptsTasks(data=path, prompt="question"),
        RubricTasks(data=path, prompt="question", criteria_column="checks"),
        PreferenceTasks(data=path, prompt="question"),
    ):
        [group] = groups(tasks)
        assert [message.content for message in group.messages] == ["Why?"]
        assert check_env(type(tasks), args={key: value for key, value in tasks.args.items() if value is not None}) == []


def test_a_missing_column_is_reported_with_its_argument():
    """Criteria are read from the column `criteria_column`; `criteria` is a file."""
    rows = [{"prompt": "Why?", "rubric": ["Says why."]}]
    with pytest.raises(DataError) as caught:
        RubricTasks(data=rows, criteria_column="rubrik")
    assert "the column `rubrik` that criteria_column=rubrik names" in str(caught.value)
    assert "Did you mean criteria_column=rubric?" in str(caught.value)


@pytest.mark.parametrize("name", ["chat.parquet", "chat_saved"])
def test_nested_columns_come_through(name):
    """Messages and criteria may be lists of structs, whose nulls are missing fields."""
    [first, _] = groups(RubricTasks(data=str(SHAPES / name), criteria_column="rubric"))
    assert [(message.role, message.name) for message in first.messages] == [("system", None), ("user", "kim")]
    assert first.grader.keys == ("sun", "criterion_1")
    assert first.task_data["reward_model"] == {"style": "rule", "ground_truth": ["the sun is down", "night"]}
    saved, plain = (groups(PreferenceTasks(data=str(SHAPES / each)))[0].task for each in (name, "chat.parquet"))
    assert saved == plain


def test_columns_are_for_data_and_not_for_another_environment():
    """Column arguments with env=NAME are refused, and the error says where that environment's arguments go."""
    with pytest.raises(InputError, match=r"got it beside env=arithmetic: .* go into env_args, a JSON object such as"):
        PreferenceTasks(env="arithmetic", prompt="question")


# Answers


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("We add.\n#### 42", "auto", ("42", "We add.")),
        ("We add.\n####42\n", "gsm8k", ("42", "We add.")),
        ("#### 1,000", "auto", ("1,000", None)),
        ("#### first\nmore\n#### 7", "auto", ("7", "#### first\nmore")),
        (r"So $\boxed{\frac{1}{2}}$.", "auto", (r"\frac{1}{2}", r"So $\boxed{\frac{1}{2}}$.")),
        (r"\boxed{1} and \boxed{2}", "boxed", ("2", r"\boxed{1} and \boxed{2}")),
        (r"It is \fbox{9}.", "boxed", ("9", r"It is \fbox{9}.")),
        (r"It is $\boxed 3$.", "boxed", ("3", r"It is $\boxed 3$.")),
        ("Paris", "auto", ("Paris", None)),
        ("#### Heading", "plain", ("#### Heading", None)),
        (r"\boxed{5}", "plain", (r"\boxed{5}", None)),
        ("two\nlines", "plain", ("two\nlines", None)),
    ],
)
def test_final_answers_by_hand(text, form, expected):
    """The final answer is after `####` on the last line, in the last box, or the whole text."""
    assert final_answer(text, AnswerFormat(form)) == expected


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("42", "gsm8k"),
        ("#### 4\nmore", "gsm8k"),
        ("####", "gsm8k"),
        ("42", "boxed"),
        (r"\boxed{4", "boxed"),
        ("a\nb", "auto"),
    ],
)
def test_a_text_without_a_final_answer_is_refused(text, form):
    """The error says what was expected."""
    with pytest.raises(DataError, match="expected an answer"):
        final_answer(text, AnswerFormat(form))


WORDS = st.text(st.characters(exclude_characters="#\\{}\r\n", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)


@given(way=st.lists(WORDS, min_size=1), answer=WORDS.filter(lambda text: text.strip()))
def test_what_was_written_in_a_format_is_found_again(way, answer):
    """Whatever the solution says before it, the final answer is extracted."""
    solution = "\n".join(way)
    for form in (AnswerFormat.AUTO, AnswerFormat.GSM8K):
        assert final_answer(f"{solution}\n#### {answer}", form) == (answer.strip(), solution.strip() or None)
    for form in (AnswerFormat.AUTO, AnswerFormat.BOXED):
        assert final_answer(f"{solution} \\boxed{{{answer}}} so.", form)[0] == answer.strip()


def test_the_format_can_be_said(tmp_path):
    """The answer format can be given; an unknown one is refused with the known ones."""
    path = write_jsonl(tmp_path / "own.jsonl", [{"question": "Which heading?", "answer": "#### 7"}])
    assert ProblemsTasks(data=path).problems[0].answer == "7"
    assert ProblemsTasks(data=path, answer_format="plain").problems[0].answer == "#### 7"
    assert ProblemsTasks(data=path, answer_format="plain").args["answer_format"] == "plain"
    with pytest.raises(UnknownNameError, match="Did you mean 'boxed'"):
        ProblemsTasks(data=path, answer_format="box")


@pytest.mark.parametrize(
    ("row", "arguments"),
    [
        ({"question": "q", "answer": ["4", "four"]}, {}),
        ({"question": "q", "answer": "4", "alias": "four"}, {"answer": "answer,alias"}),
        ({"question": "q", "short": "4", "others": ["four", "iv"]}, {"answer": ["short", "others"]}),
        ({"question": "q", "a,b": ["4", "four"]}, {"answer": "a,b"}),
    ],
    ids=["list", "columns", "columns and lists", "name with a comma"],
)
async def test_several_accepted_answers(row, arguments):
    """Each accepted answer is right, numbers by value and words as text; the record has them all."""
    [group] = groups(ProblemsTasks(data=[row], **arguments))
    assert group.reference[:2] == ("4", "four")
    for reply, correct in (("4.0", 1), ("four", 1), ("five", 0)):
        [env] = await group.make_episode(0)
        await env.initial_observation()
        result = await env.step(to_completion(f"Answer: {reply}"))
        assert result.reward_data["correct"] == correct
        assert result.extra["reference"] == list(group.reference)


async def test_of_several_scores_the_best_counts():
    """The best score counts, also if one accepted answer cannot be judged or all are below zero."""

    def check(answer, reference):
        return float(reference)

    for references, best in ((["-3", "-2"], -2.0), (["0.25", "0.75", "0.5"], 0.75), (["nan", "0.5"], 0.5)):
        env = ProblemEnv("q", references, check=check)
        await env.initial_observation()
        assert (await env.step(to_completion("Answer: x"))).reward_data["correct"] == best
    with pytest.raises(InputError, match="at least one accepted answer"):
        ProblemEnv("q", [])
    assert (auto_score("7.0", "7"), auto_score("7.0", "seven")) == (1.0, 0.0)


def test_an_answer_that_is_no_finite_number(tmp_path):
    """A Parquet file can hold NaN as an answer; it is refused with its row."""
    path = write_parquet(
        tmp_path / "own.parquet", [{"question": "q", "answer": 1.5}, {"question": "r", "answer": float("nan")}]
    )
    with pytest.raises(DataError, match=r"own\.parquet: row 2: expected a finite number as `answer`, got nan"):
        ProblemsTasks(data=path)


# Ids


QUESTIONS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=8)


@given(questions=QUESTIONS, data=st.data())
def test_ids_are_made_of_the_content(questions, data):
    """Ids are unique, independent of the order and of other rows, and equal questions are numbered."""
    rows = [{"question": question, "answer": "1", "extra": number} for number, question in enumerate(questions)]
    ids = [problem.id for problem in ProblemsTasks(data=rows).problems]
    assert len(set(ids)) == len(ids)
    kept = data.draw(st.permutations(rows).map(lambda order: order[: len(order) // 2 + 1]))
    unique = {question for question in questions if questions.count(question) == 1}
    known = dict(zip(questions, ids, strict=True))
    for problem in ProblemsTasks(data=kept).problems:
        if problem.question in unique:
            assert problem.id == known[problem.question]


def test_ids_are_the_same_in_every_format(tmp_path):
    """Ids do not depend on the file format or on other columns."""
    rows = [
        {"question": "Wie groß?", "answer": "1"},
        {"question": "How?", "answer": "2"},
        {"question": "How?", "answer": "3"},
    ]
    made = {
        kind: [problem.id for problem in ProblemsTasks(data=write(tmp_path / f"own.{kind}", rows)).problems]
        for kind, write in WRITERS.items()
    }
    made["list"] = [problem.id for problem in ProblemsTasks(data=[{**row, "n": 1} for row in rows]).problems]
    assert len({tuple(ids) for ids in made.values()}) == 1
    assert made["list"][2] == f"{made['list'][1]}-2"
    chat = [{"prompt": [{"role": "user", "content": "Hi."}]}]
    assert PromptsTasks(data=chat).rows[0].id == PromptsTasks(data=[{"messages": chat[0]["prompt"], "n": 2}]).rows[0].id


# The command line


def test_env_args_explains_its_syntax(rolltrace_command):
    """The error shows the syntax."""
    shown = rolltrace_command("run", "preference", "--arg", "env=arithmetic", "--arg", "env_args=difficulty=2", code=2)
    assert """Write it as JSON, in quotes for the shell: 'env_args={"KEY": "VALUE", "N": 2}'.""" in shown.stderr


@pytest.fixture
def rolltrace_command(tmp_path, monkeypatch):
    """Runs the command in this process, in an empty directory, and expects an exit code."""
    from click.testing import CliRunner

    from rolltrace.cli.app import cli

    monkeypatch.chdir(tmp_path)

    def run(*words, code=0):
        shown = CliRunner().invoke(cli, [str(word) for word in words])
        assert shown.exit_code == code, shown.stderr
        return shown

    return run


def test_the_readme_of_the_shapes_names_every_file():
    """The README names every file and the version that wrote them."""
    text = (SHAPES / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in SHAPES.iterdir()} - {"README.md", "__pycache__"}
    assert files <= {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", text)}
    assert re.search(r"`datasets` \d+\.\d+\.\d+", text)
