import pytest

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that only this test can import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_names_and_paths_of_names_are_found(module):
    """`package.module:name` names an object, also inside another."""
    name = module("imports_found", "class Outer:\n    inner = 7\n")
    assert import_object(f"{name}:Outer.inner", "thing") == 7


@pytest.mark.parametrize("spec", ["", "x", ":x", "x:"])
def test_a_spec_of_another_form_is_refused(spec):
    """A spec without a module or a name is refused."""
    with pytest.raises(InputError, match=r"Expected thing as `package\.module:name`"):
        import_object(spec, "thing")


def test_a_missing_module_is_named():
    """A missing module is told apart from one that fails."""
    with pytest.raises(InputError, match="There is no module 'no_such_package' for thing"):
        import_object("no_such_package.sub:x", "thing")


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("imports_dependency", "import no_such_dependency", "No module named 'no_such_dependency'"),
        ("imports_raising", "1 / 0", "ZeroDivisionError: division by zero"),
        ("imports_syntax", "def broken(:", "SyntaxError"),
        ("imports_exit", "raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_names_the_cause(module, name, text, cause):
    """Whatever a module does when imported, the error names the module and the cause."""
    module(name, text)
    with pytest.raises(InputError, match=f"Module '{name}' of thing '{name}:x' cannot be imported: {cause}"):
        import_object(f"{name}:x", "thing")


def test_a_missing_name_suggests_the_nearest_of_the_module(module):
    """Only names that the module itself defines are suggested."""
    name = module("imports_near", "import os\nfrom pathlib import Path\nclass MyEnv: pass\n_hidden = 1\n")
    with pytest.raises(UnknownNameError, match=r"'MyEnvv'\. Did you mean 'MyEnv'\? Known: MyEnv\."):
        import_object(f"{name}:MyEnvv", "thing")
