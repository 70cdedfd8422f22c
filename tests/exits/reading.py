"""For the scripts here: the lines of a page of the docs, run as they stand."""

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "exits"


def lines_of(name: str) -> str:
    """The one block of code or config of the page of an exit."""
    (block,) = re.findall(r"```(?:python|yaml)\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.DOTALL)
    return block


def run_page(name: str, **given):
    """What the lines of a page define, run with the names that the reader brings."""
    names = dict(given)
    exec(compile(lines_of(name), f"{name}.md", "exec"), names)
    return names
