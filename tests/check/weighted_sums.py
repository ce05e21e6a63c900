"""Sums whose grader states its terms and weights, for audits of them."""

from dataclasses import dataclass

from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.env import copy_builder
from rolltrace.envs.tasks import Tasks
from rolltrace.graders.grader import Grader
from rolltrace.trace.score import Grade

WEIGHTS = {"correct": 1.0, "length": -0.001}


class WeightedGrader(Grader):
    """Pays for the right answer, and charges for each character."""

    async def grade(self, rollout):
        """The weighted sum of two terms."""
        step = rollout.steps[-1]
        length = float(len(step.trace.policy_response.content))
        terms = {"correct": step.reward_data["correct"], "length": length}
        return Grade(sum(WEIGHTS[name] * terms[name] for name in terms), terms, reward_weights=WEIGHTS)


@dataclass
class WeightedSums(Tasks):
    """Sums with this grader."""

    env = "weighted_sums"
    count = None

    def builder(self, number, *, episodes, seed):
        """A sum."""
        builder = ArithmeticTasks().builder(number, episodes=episodes, seed=seed)
        fields = {"env": self.env, "grader": WeightedGrader(), "reward_range": (-2.0, 2.0)}
        return copy_builder(builder, "of weighted sums", fields)
