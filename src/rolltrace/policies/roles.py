"""Who plays which role."""

from collections.abc import Mapping

import msgspec

from rolltrace.errors import InputError
from rolltrace.policies.base import Policy
from rolltrace.policies.contract import check_policy

POLICY = "policy"
"""The role of whoever is trained."""


class Roles(msgspec.Struct, frozen=True):
    """The policy that plays, and others for the other roles of an env; a role that nobody was given is the policy's."""

    policy: Policy
    others: Mapping[str, Policy] = {}
    asked: set[str] = msgspec.field(default_factory=set)
    """The roles that somebody has asked for, whoever plays them."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        for role, policy in self.others.items():
            if role == POLICY:
                raise InputError(f"Expected the policy itself apart from those in other roles, got one for {role!r}.")
            check_policy(policy)

    def of(self, role: str) -> Policy:
        """Who plays this role."""
        self.asked.add(role)
        return self.others.get(role, self.policy)

    def of_seat(self, role: str, seat: int | None) -> Policy:
        """Who plays this seat of a game: whoever was given the seat by number, else its role."""
        if seat is not None and (numbered := f"seat{seat}") in self.others:
            self.asked.add(numbered)
            return self.others[numbered]
        return self.of(role)

    @property
    def unasked(self) -> list[str]:
        """The roles that were given a policy, and that nobody has asked so far: they may be misspelt."""
        return sorted(self.others.keys() - self.asked)

    @property
    def played_by_policy(self) -> list[str]:
        """The other roles that were asked so far, and that the policy plays itself because nobody was given them."""
        return sorted(self.asked - self.others.keys() - {POLICY})
