import importlib.util

import pytest

from rolltrace.errors import WorkerError
from rolltrace.graders.safe_eval import evaluate_literal, restrict_sympy_eval
from rolltrace.graders.scoring_pool import SCORING_POOL

pytestmark = pytest.mark.core

needs_sympy = pytest.mark.skipif(importlib.util.find_spec("sympy") is None, reason="needs the extra `math`")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[['_', 'Q'], [1, -2.5]]", [["_", "Q"], [1, -2.5]]),
        (" {'a': (1, None)} ", {"a": (1, None)}),
        ("(0x0f << 2) - 7 // 2 ** 1", 57),
    ],
)
def test_literals_and_arithmetic_have_their_value(text, value):
    """Literals and arithmetic are evaluated."""
    assert evaluate_literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "entry",
        "__import__('os').getpid()",
        "().__class__",
        "[x for x in (1,)]",
        "lambda: 1",
        "f'{1}'",
        "(x := 1)",
        "1 if 1 else 2",
    ],
)
def test_programs_are_refused(text):
    """Names, calls, attributes and other parts of programs are refused."""
    with pytest.raises(ValueError, match=r"^Expected a literal or arithmetic, got"):
        evaluate_literal(text)


def parsed(text):
    return SCORING_POOL.run_sync(
        eval, f"str(__import__('sympy').parse_expr({text!r}))", cpu_seconds=30, prepare=restrict_sympy_eval
    )


@needs_sympy
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(3 + 4) * 7 / 2", "49/2"),
        ("2*x**2 + sin(y)*exp(-x) + log(z) + Abs(x) + C", "C + 2*x**2 + exp(-x)*sin(y) + log(z) + Abs(x)"),
        ("sqrt(2)*pi + E + 3!", "6 + E + sqrt(2)*pi"),
        ("foo(x)", "foo(x)"),
    ],
)
def test_sympy_still_reads_formulas(text, value):
    """Numbers, symbols, functions and constants are still read by sympy."""
    assert sorted(parsed(text).split(" + ")) == sorted(value.split(" + "))


@needs_sympy
@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getpid()",
        "exec('1')",
        "open('/etc/hostname')",
        "eval(chr(49))",
        "x.__class__",
        "(lambda: 1)()",
        "sin('__import__(\"os\").getpid()')",
        "lambdify(x, 'x')",
        "[Integer for Integer in (1, 2)]",
    ],
)
def test_sympy_runs_no_programs(text):
    """Text that sympy would evaluate as Python is refused, also when it is hidden in a string."""
    with pytest.raises(WorkerError, match=r"Expected a formula, got a program|SympifyError|SyntaxError"):
        parsed(text)
