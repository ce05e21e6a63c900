"""Seeds depend on their parts alone."""

from hypothesis import given
from hypothesis import strategies as st

from rolltrace.seeds import derive_member_seed, derive_seed


@given(
    st.none() | st.booleans() | st.integers(),
    st.text(),
    st.integers(),
    st.text(),
    st.none() | st.integers(0),
    st.integers(0),
)
def test_the_seed_of_a_member_is_that_of_its_parts(
    run_seed: object, split: str, iteration: int, group: str, index: int | None, attempt: int
) -> None:
    parts = (run_seed, split, iteration, group, index, attempt)
    assert derive_member_seed(*parts) == derive_seed(*parts)


def test_parts_differ_by_type() -> None:
    members = [derive_member_seed(seed, "train", 0, "1", 0, 0) for seed in (1, True, 1.0, "1", None)]
    assert len(set(members)) == len(members)
