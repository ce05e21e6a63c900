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

    def __post_init__(self) -> None:
        check_policy(self.policy)
        for role, policy in self.others.items():
            if role == POLICY:
                raise InputError(f"Expected the policy itself apart from those in other roles, got one for {role!r}.")
            check_policy(policy)

    def of(self, role: str) -> Policy:
        """Who plays this role."""
        return self.others.get(role, self.policy)

    def of_seat(self, role: str, seat: int) -> Policy:
        """Who plays this seat of a game: whoever was given the seat by number, else its role."""
        return self.others.get(f"seat{seat}") or self.of(role)
