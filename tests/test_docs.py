"""The docs say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from retok_dask import Recipe

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_recipe_page_is_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "recipe.md").read_text() == generate.page(), "run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_shown_are_recipes(page):
    import yaml

    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        data = yaml.safe_load(block)
        if isinstance(data, dict) and {"tokenizer", "datasets", "output"} <= data.keys():
            Recipe.from_dict(data)
