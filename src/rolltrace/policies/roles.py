"""Who plays which role."""

from collections.abc import Mapping

import msgspec

from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.validation import check_policy

POLICY_ROLE = "policy"
"""The role of whoever is trained."""


class Roles(msgspec.Struct, frozen=True):
    """The policy that plays, and others for the other roles of an env; a role that nobody was given is the policy's."""

    policy: Policy
    others: Mapping[str, Policy] = {}
    used: set[str] = msgspec.field(default_factory=set)
    """The roles that somebody has asked for, whoever plays them."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        for role, policy in self.others.items():
            if role == POLICY_ROLE:
                raise InputError(f"Expected the policy itself apart from those in other roles, got one for {role!r}.")
            check_policy(policy)

    def policy_for(self, role: str) -> Policy:
        """Who plays this role."""
        self.used.add(role)
        return self.others.get(role, self.policy)

    def policy_for_seat(self, role: str, seat: int | None) -> Policy:
        """Who plays this seat of a game: whoever was given the seat by number, else its role."""
        if seat is not None and (numbered := f"seat{seat}") in self.others:
            self.used.add(numbered)
            return self.others[numbered]
        return self.policy_for(role)

    @property
    def unused(self) -> list[str]:
        """The roles that were given a policy, and that nobody has asked so far: they may be misspelt."""
        return sorted(self.others.keys() - self.used)

    @property
    def played_by_policy(self) -> list[str]:
        """The other roles that were asked so far, and that the policy plays itself because nobody was given them."""
        return sorted(self.used - self.others.keys() - {POLICY_ROLE})
