"""Which policy plays which role."""

from collections.abc import Mapping

import msgspec

from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.validation import check_policy

POLICY_ROLE = "policy"
"""The role of the policy that is trained."""


class Roles(msgspec.Struct, frozen=True):
    """The playing policy, and policies for other roles. A role without a policy of its own is played by the first."""

    policy: Policy
    others: Mapping[str, Policy] = {}
    used: set[str] = msgspec.field(default_factory=set)
    """The roles that were used."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        for role, policy in self.others.items():
            if role == POLICY_ROLE:
                raise InputError(f"Expected the policy itself apart from those in other roles, got one for {role!r}.")
            check_policy(policy)

    def policy_for(self, role: str) -> Policy:
        """The policy that plays a role."""
        self.used.add(role)
        return self.others.get(role, self.policy)

    def policy_for_seat(self, role: str, seat: int | None) -> Policy:
        """The policy that plays a seat of a game: the one given for its number, otherwise the one for its role."""
        if seat is not None and (numbered := f"seat{seat}") in self.others:
            self.used.add(numbered)
            return self.others[numbered]
        return self.policy_for(role)

    @property
    def unused(self) -> list[str]:
        """Roles that have a policy and were not used so far: their names may be misspelled."""
        return sorted(self.others.keys() - self.used)

    @property
    def played_by_policy(self) -> list[str]:
        """Other roles that were used and that the playing policy plays, because none was given for them."""
        return sorted(self.used - self.others.keys() - {POLICY_ROLE})
