"""Where the built files of the page are."""

from pathlib import Path

from rolltrace.errors import InputError

PAGE = Path(__file__).parent / "page"


def page_folder() -> Path:
    """The folder of the built page: `index.html`, and what it needs under `assets/`."""
    if not (PAGE / "index.html").is_file():
        raise InputError(
            f"This installation of Rolltrace has no built page: there is no index.html in {PAGE}. "
            "Install the package again (`pip install .`), or run `make web` in a source tree."
        )
    return PAGE
