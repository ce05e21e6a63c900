"""The build hook of the package: wheel and source distribution carry the viewer's page, built where that is needed."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))  # hatchling loads this file alone

from npm import REQUIREMENT, NodeMissingError, find_npm
from page_build import PageError, find_page, make_page, put_page


class PageHook(BuildHookInterface[Any]):
    """Puts the built page where the package looks for it."""

    def dependencies(self) -> list[str]:
        """Node as a package, only where a page must be built and the PATH has no Node that suffices."""
        if find_page():
            return []
        try:
            find_npm()
        except NodeMissingError:
            return [REQUIREMENT]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the page; an editable install looks for it in the tree itself."""
        try:
            if version == "editable":
                put_page()
                return
            page = make_page()
        except (PageError, NodeMissingError) as error:
            raise SystemExit(f"\n{error}\n") from None
        inside = "rolltrace/viewer/page" if self.target_name == "wheel" else "src/rolltrace/viewer/page"
        build_data["force_include"][str(page)] = inside
