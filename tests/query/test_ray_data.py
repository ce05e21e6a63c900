"""Ray Data reads the tables of a run, as the guide shows it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from object_store import record
from rolltrace.query.compact import compact

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "scale.md"
pytestmark = [pytest.mark.core, pytest.mark.skipif(not GUIDE.exists(), reason="the guides are in the checkout")]


def test_the_guide_reads_tables_with_ray_data(tmp_path):
    """The guide's program reads the rewards of one iteration, on a local cluster."""
    pytest.importorskip("ray.data", reason="needs Ray with its extra data")
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    [code] = [block for block in blocks if "import ray\n" in block]
    record(tmp_path / "runs" / "two", 24)
    compact(tmp_path / "runs" / "two")
    program = f"import ray; ray.init(address='local', num_cpus=2, include_dashboard=False)\n{code}\nprint(len(rewards))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == "8"
