import pytest

from rolltrace.errors import InputError
from rolltrace.jobs.open_policy import open_policy
from rolltrace.testing.faults import FAULT_KINDS, FaultyPolicy
from rolltrace.testing.noisy import NoisyPolicy


def test_scripted_policies_take_arguments():
    """What follows the name is converted to the types of the policy's arguments."""
    noisy = open_policy("scripted:noisy,correct=0.25,name=n,context_length=30")
    assert isinstance(noisy, NoisyPolicy)
    assert (noisy.correct, noisy.name, noisy.context_length) == (0.25, "n", 30)
    assert open_policy("scripted:noisy").name == "scripted:noisy"


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_fault_can_be_asked_for(kind):
    """Each kind of fault has a specification."""
    policy = open_policy(f"scripted:fault,kind={kind},at=2,fraction=0.5")
    assert isinstance(policy, FaultyPolicy)
    assert (policy.kind, policy.at, policy.fraction) == (kind, 2, 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("scripted:noise", "There is no scripted policy 'noise'. Did you mean 'noisy'?"),
        ("scripted", "There is no scripted policy ''."),
        ("noisy", "There is no policy 'noisy'. Did you mean 'scripted:noisy'?"),
        ("scripted:noisy,corect=1", "no argument of scripted:noisy 'corect'. Did you mean 'correct'?"),
        ("scripted:noisy,correct=often", "Expected `float` for argument 'correct' of scripted:noisy, got 'often'."),
        ("scripted:noisy,correct", "Expected KEY=VALUE after the comma"),
        ("scripted:noisy,correct=1,correct=0", "got 'correct' twice"),
        ("scripted:fault", "Expected argument 'kind' of scripted:fault, got none"),
        ("scripted:fault,kind=rays", "no kind of fault 'rays'. Did you mean 'raise'?"),
    ],
)
def test_a_wrong_specification_of_a_scripted_policy_is_an_error(spec, message):
    """The error says what was expected, and suggests the nearest name."""
    with pytest.raises(InputError) as caught:
        open_policy(spec)
    assert message in str(caught.value)


def test_a_policy_object_is_returned_as_it_is():
    """What is not a specification needs no opening."""
    policy = NoisyPolicy()
    assert open_policy(policy) is policy
