"""Write docs/recipe.md from the recipe's own models, so that the page cannot drift.

python docs/generate.py
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from retok_dask import recipe

HEAD = """# The recipe

A YAML file that says everything a run is asked to do. Unknown keys are refused, and the nearest legal
one is named. Sizes may be written like `128MiB` or `2GB`. This page is made from the code by
`python docs/generate.py`; a test holds it to that.

```yaml
tokenizer: Qwen/Qwen3.6-27B
mask: assistant
datasets:
  - name: completions
    input: s3://bucket/completions/*.jsonl
output: s3://bucket/tokenized
```
"""

PARTS = [
    ("Top level", recipe.Recipe),
    ("`tokenizer`", recipe.TokenizerSpec),
    ("`template`", recipe.TemplateSpec),
    ("`normalize`", recipe.NormalizeSpec),
    ("`datasets`", recipe.DatasetSpec),
    ("`datasets.filters`", recipe.FilterSpec),
    ("`documents`", recipe.DocumentSpec),
    ("`storage`", recipe.StorageSpec),
    ("`units`", recipe.UnitSpec),
    ("`cluster`", recipe.ClusterSpec),
]


def type_name(annotation: Any) -> str:
    text = str(annotation) if not isinstance(annotation, type) else annotation.__name__
    for long, short in (
        ("typing.", ""),
        ("retok_dask.recipe.parts.", ""),
        ("datetime.", ""),
        ("NoneType", "none"),
        ("None", "none"),
    ):
        text = text.replace(long, short)
    if text.startswith("Optional["):
        text = f"{text[9:-1]} or none"
    if text.startswith("Literal["):
        text = " or ".join(part.strip().strip("'") for part in text[8 : text.index("]")].split(","))
    return text.replace(" | ", " or ").replace("|", "or")


def default_of(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "" if field.default_factory is not None else "required"
    if isinstance(field.default, recipe.Part):
        return ""
    return "" if field.default is None else f"`{field.default}`"


def meanings(model: type[recipe.Part]) -> dict[str, str]:
    """What stands below each field; pydantic can read it too, but would do so in every process that imports a recipe."""
    (made,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(made, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(made.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def page() -> str:
    lines = [HEAD]
    for title, model in PARTS:
        lines += [f"## {title}", "", (model.__doc__ or "").split("\n\n")[0].strip(), ""]
        lines += ["| key | takes | default | meaning |", "|---|---|---|---|"]
        meant = meanings(model)
        for name, field in model.model_fields.items():
            meaning = " ".join(meant.get(name, "").split())
            lines.append(f"| `{name}` | {type_name(field.annotation)} | {default_of(field)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("recipe.md").write_text(page(), encoding="utf-8")
