"""The folder of the built page."""

from pathlib import Path

from rolltrace.errors import InputError

PAGE = Path(__file__).parent / "page"


def page_folder() -> Path:
    """The folder with `index.html` and `assets/`."""
    if not (PAGE / "index.html").is_file():
        raise InputError(
            f"Expected the built page in {PAGE}, got no index.html. "
            "Install the package again (`pip install .`), or run `make web` in a source tree."
        )
    return PAGE
