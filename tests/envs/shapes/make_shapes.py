"""Writes the files beside it: `python make_shapes.py`, with the package `datasets` installed. See README.md."""

import json
from pathlib import Path

import datasets

HERE = Path(__file__).parent

GSM8K = [
    {
        "question": "A ferry carries 48 cars on each trip. It makes 3 trips before noon and half as many cars in all "
        "after noon. How many cars does it carry that day?",
        "answer": "Before noon it carries 48*3=<<48*3=144>>144 cars.\n"
        "After noon it carries 144/2=<<144/2=72>>72 cars.\nIn all it carries 144+72=<<144+72=216>>216 cars.\n#### 216",
    },
    {
        "question": "A printer makes 25 pages a minute. How many pages does it make in 8 hours?",
        "answer": "An hour has 60 minutes, so it makes 25*60=<<25*60=1500>>1500 pages an hour.\n"
        "In 8 hours it makes 1500*8=<<1500*8=12000>>12,000 pages.\n#### 12,000",
    },
    {
        "question": "Mira has 9 apples and gives 12 to friends, borrowing what she lacks. How many apples has she now?",
        "answer": "She has 9-12=<<9-12=-3>>-3 apples.\n#### -3",
    },
]
MATH = [
    {
        "problem": "What is the sum of the roots of $x^2 - 7x + 10 = 0$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "By Vieta's formulas the sum of the roots is $7$. So the answer is $\\boxed{7}$.",
    },
    {
        "problem": "A fair die is rolled twice. What is the probability that both rolls are even?",
        "level": "Level 2",
        "type": "Counting & Probability",
        "solution": "Each roll is even with probability $\\boxed{\\text{not yet}}$, that is $\\frac{1}{2}$.\n\n"
        "So both are even with probability $\\boxed{\\frac{1}{4}}$.",
    },
    {
        "problem": "How many diagonals has a convex pentagon?",
        "level": "Level 1",
        "type": "Geometry",
        "solution": "Each of the 5 corners has 2 diagonals, each counted twice: $\\fbox{5}$.",
    },
]
CHAT = [
    {
        "prompt": [
            {"role": "system", "content": "Answer in one sentence.", "name": None},
            {"role": "user", "content": "Why is the sky dark at night?", "name": "kim"},
        ],
        "rubric": [
            {"text": "Names that the sun is on the other side.", "weight": 2.0, "name": "sun"},
            {"text": "Is longer than a sentence.", "weight": -1.0, "name": None},
        ],
        "reward_model": {"style": "rule", "ground_truth": ["the sun is down", "night"]},
    },
    {
        "prompt": [{"role": "user", "content": "Name a metal that is liquid at room temperature.", "name": None}],
        "rubric": [{"text": "Names mercury or gallium.", "weight": 1.0, "name": "metal"}],
        "reward_model": {"style": "rule", "ground_truth": ["mercury", "gallium"]},
    },
]


def main() -> None:
    """Write every file."""
    with (HERE / "gsm8k.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in GSM8K)
    gsm8k, math, chat = (datasets.Dataset.from_list(rows) for rows in (GSM8K, MATH, CHAT))
    gsm8k.to_parquet(HERE / "gsm8k.parquet")
    gsm8k.to_csv(HERE / "gsm8k.csv")
    with (HERE / "math.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in MATH)
    math.to_parquet(HERE / "math.parquet")
    chat.to_parquet(HERE / "chat.parquet")
    gsm8k.save_to_disk(HERE / "gsm8k_saved", num_shards=2)
    datasets.DatasetDict({"train": math.select([0, 1]), "test": math.select([2])}).save_to_disk(HERE / "math_saved")
    chat.save_to_disk(HERE / "chat_saved")


if __name__ == "__main__":
    main()
