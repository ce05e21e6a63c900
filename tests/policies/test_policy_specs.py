import pytest

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.policies.policy import Policy
from rolltrace.policies.policy_specs import load_policy
from rolltrace.testing.scripted import ScriptedReplies

OWN = """
from rolltrace.testing.scripted import ScriptedReplies

class Own(ScriptedReplies):
    def __init__(self, text: str = "hi", times: int = 1):
        super().__init__([text] * times, name="own")

def make(times: int):
    return Own(times=times)

made = Own()
nothing = 7

def breaks():
    raise OSError("no such weights")

class Half:
    name = "half"
    async def complete(self, request): ...
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module that holds policies."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "load_own_policies.py").write_text(OWN)
    return "load_own_policies"


def test_a_policy_of_ones_own(own):
    """A spec can name a class, a function or an instance; the first two take arguments."""
    for spec in (f"{own}:Own,times=2", f"{own}:make,times=2", f"{own}:made"):
        policy = load_policy(spec)
        assert isinstance(policy, Policy)
        assert policy.name == "own"
        assert len(policy.replies) == (1 if spec.endswith("made") else 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("openai", "Expected a policy as openai:MODEL@BASE_URL"),
        ("openai:model", "Expected a policy as openai:MODEL@BASE_URL"),
        ("openai:model@http://localhost,key=sk-0123456789", "no argument of openai 'key'"),
        ("openai:model@http://localhost,retires=3", "no argument of openai 'retires'. Did you mean 'retries'?"),
        ("human:somebody,nmae=x", "no argument of human 'nmae'"),
        (
            "replay:somewhere",
            "`rolltrace run` or rolltrace.jobs.open_policy.open_policy",
        ),
        ("scripted:noisy", "got 'scripted': use rolltrace.play"),
        ('openai:m@http://h,extra={"a": 1, "b": 2},b', "for argument 'extra' of openai, got"),
        ("nothing", "Policies have the form local[:FILE.gguf], openai:MODEL@BASE_URL, scripted:NAME"),
        ("no_such_package:x", "There is no module 'no_such_package' for policy"),
        ("load_own_policies:Onw", "Did you mean 'Own'?"),
        ("load_own_policies:made,times=2", "which is a policy already, got times"),
        ("load_own_policies:nothing", "got int without name, version, context_length, complete, count_tokens"),
        ("load_own_policies:Half", "got Half without version, context_length, count_tokens"),
        ("load_own_policies:breaks", "could not be made: OSError: no such weights"),
        ("load_own_policies:make", "Expected argument 'times'"),
    ],
)
def test_invalid_specs(own, spec, message):
    """Every wrong specification gets an error that says what was expected."""
    with pytest.raises(InputError) as caught:
        load_policy(spec)
    assert message in str(caught.value)


def test_kinds_are_made_of_what_follows_their_colon():
    """`openai:` takes a model and an address, `human` a name; callers can add kinds."""
    endpoint = load_policy("openai:qwen/3:8b@http://127.0.0.1:8000/v1,version=7,max_in_flight=3")
    assert (endpoint.model, endpoint.version) == ("qwen/3:8b", "7")
    assert load_policy("human").name == "human"
    made = load_policy(
        "echo:some:thing,loud=true", {"echo": lambda what, loud: ScriptedReplies([what], name=f"{loud}")}
    )
    assert (made.replies, made.name) == (("some:thing",), "true")


@pytest.mark.parametrize(
    ("spec", "target", "args"),
    [
        ("a:b", "a:b", {}),
        ("a:b,c=1,d=x=y", "a:b", {"c": "1", "d": "x=y"}),
        ('a:b,c={"d": 1, "e=": [2, 3]},f=g,h', "a:b", {"c": '{"d": 1, "e=": [2, 3]}', "f": "g,h"}),
        ("a:b,c,d/e,f=1", "a:b,c,d/e", {"f": "1"}),
    ],
)
def test_arguments_begin_where_a_comma_and_a_name_do(spec, target, args):
    """A comma that no `name=` follows is part of the path or value."""
    seen = {}
    kind, _, name = target.partition(":")
    load_policy(spec, {kind: lambda what, **given: seen.update(what=what, given=given) or ScriptedReplies(["x"])})
    assert seen == {"what": name, "given": args}


def test_an_unknown_policy_is_an_unknown_name():
    """An unknown policy raises UnknownNameError, which the command line tells apart from other mistakes."""
    with pytest.raises(UnknownNameError):
        load_policy("lokal")
