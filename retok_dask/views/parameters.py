"""Parameters of notebooks: declared with types in one tagged cell, and checked before anything runs.

papermill guesses types (``0123`` becomes 123, ``false`` stays text in some
versions) and only warns about unknown names. Here the parameters cell is the
declaration: ``name: type = default  # what it is``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from retok_dask.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbformat import NotebookNode

TAG = "parameters"
_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "list[str]": list[str],
    "list[int]": list[int],
    "dict[str, float]": dict[str, float],
    "str | None": str | None,
    "int | None": int | None,
    "float | None": float | None,
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook: its name, its type as written, and its default."""

    name: str
    annotation: str
    default: Any

    def check(self, value: Any) -> Any:
        """The value in this parameter's type; text is read as that type, nothing is guessed.

        Raises:
            RecipeError: it is not of this type.
        """
        wanted = _TYPES[self.annotation]
        adapter = TypeAdapter(wanted)
        try:
            if isinstance(value, str) and wanted not in (str, str | None):
                return None if value == "null" and "None" in self.annotation else _from_text(adapter, wanted, value)
            return adapter.validate_python(value, strict=wanted is not float)
        except (ValidationError, ValueError):
            msg = f"parameter {self.name!r} is {self.annotation}, and {value!r} is none; give a {self.annotation}"
            raise RecipeError(msg) from None


def _from_text(adapter: TypeAdapter[Any], wanted: Any, value: str) -> Any:
    if wanted in (list[str], list[int], dict[str, float]):
        return adapter.validate_json(value)
    if wanted is bool and value.lower() not in {"true", "false"}:
        msg = "write true or false"
        raise ValueError(msg)
    return adapter.validate_python(value)


def declared_parameters(notebook: NotebookNode, name: str) -> dict[str, Parameter]:
    """The parameters that a notebook declares in its one tagged cell.

    Args:
        notebook: as read by nbformat.
        name: for messages.

    Raises:
        RecipeError: there is not exactly one such cell, or it holds something
            that is not a typed parameter with a plain default.
    """
    cells = [cell for cell in notebook.cells if TAG in cell.get("metadata", {}).get("tags", [])]
    if len(cells) != 1:
        msg = (
            f"{name} has {len(cells)} cells tagged {TAG!r} and needs exactly one; without it parameters have no effect"
        )
        raise RecipeError(msg)
    found: dict[str, Parameter] = {}
    for statement in ast.parse(cells[0].source).body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value):
            msg = f"{name}: line {statement.lineno} of the parameters cell is no `name: type = default`"
            raise RecipeError(msg)
        annotation = ast.unparse(statement.annotation)
        if annotation not in _TYPES:
            msg = f"{name}: {annotation!r} is no type of a parameter.{did_you_mean(annotation, _TYPES)}"
            raise RecipeError(msg)
        default = ast.literal_eval(statement.value)
        found[statement.target.id] = Parameter(statement.target.id, annotation, default)
    return found


def check_parameters(declared: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """All effective parameters: the given ones in their types, defaults for the others.

    Raises:
        RecipeError: a name is not declared, or a value is not of its type.
    """
    for name in given:
        if name not in declared:
            msg = f"the notebook has no parameter {name!r}.{did_you_mean(name, declared)}"
            raise RecipeError(msg)
    return {name: declared[name].check(given[name]) if name in given else declared[name].default for name in declared}
