"""The docs say what the code says."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import typer

from retok_dask import Recipe
from retok_dask.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


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


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def text_of(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text()
    return "\n".join("".join(cell["source"]) for cell in json.loads(page.read_text())["cells"])


def commands_shown(page: Path) -> list[list[str]]:
    """Command lines of `retok` and `make` in code blocks and in code within a line, as words."""
    text = text_of(page)
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [line.split(" #")[0].split(" < ")[0].split() for block in [*blocks, *inline] for line in block.splitlines()]
    return [words for words in lines if len(words) > 1 and words[0] in {"retok", "make"}]


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_every_command_and_option_shown_exists(page):
    subcommands = typer.main.get_command(app).commands
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, name, *rest in commands_shown(page):
        if program == "make":
            assert name in targets, f"{page.name}: make {name}"
            continue
        assert name in subcommands, f"{page.name}: retok {name}"
        command = subcommands[name]
        options = {one for param in command.params for one in param.opts}
        shown = {word.split("=")[0] for word in rest if word.startswith("-")}
        assert shown <= options | {"--help"}, f"{page.name}: retok {name} {' '.join(rest)}"


def test_the_commands_of_the_readme_are_all_looked_at():
    shown = {" ".join(words[:2]) for words in commands_shown(ROOT / "README.md")}
    assert shown >= {"make demo", "make test", "retok plan", "retok run", "retok show", "retok encode", "retok report"}


def test_every_command_is_described_somewhere():
    shown = {words[1] for page in [*PAGES, *NOTEBOOKS] for words in commands_shown(page) if words[0] == "retok"}
    assert shown >= typer.main.get_command(app).commands.keys()
