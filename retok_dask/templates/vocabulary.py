"""What a template may use in minijinja.

Everything that is not named here, the guarded Jinja runs: a new version of
minijinja may have more filters and methods, and nobody has looked at whether
those make giants of small texts.
"""

from __future__ import annotations

from retok_dask.templates.syntax import GENERATION_CALL, MUTATORS

FUNCTIONS = frozenset({"namespace", "range", "raise_exception", "strftime_now", GENERATION_CALL})
"""What may be called by its name, beside the template's macros."""

RESERVED = FUNCTIONS | {"loop", "caller", "self", "super", "varargs", "kwargs"}
"""Names that have a meaning, and must have no other one."""

PARTS = frozenset({"strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "get"})
"""Methods that give a part of their text, or that in other letters, or one of their arguments."""

FACTS = frozenset({"startswith", "endswith", "count", "find", "rfind", "isdigit", "isalpha", "isalnum", "isnumeric"})
"""Methods that give a number, or whether something is so."""

LISTS = frozenset({"split", "rsplit", "splitlines", "items", "keys", "values"})
"""Methods that give a list of parts."""

METHODS = PARTS | FACTS | LISTS | MUTATORS | {"replace", "join", "format"}

NUMBERS = frozenset({"length", "count", "int", "float", "abs", "round"})
"""Filters that give a number."""

ELEMENTS = frozenset({"first", "last", "min", "max"})
"""Filters that give what is in a list."""

PART_FILTERS = frozenset(
    {"trim", "lower", "upper", "title", "capitalize", "default", "d", "safe", "string", "bool", "from_json"}
)
"""Filters that give a part of a text, or that in other letters, or one of their arguments; ``from_json`` no engine has."""

LIST_FILTERS = frozenset(
    {
        *("list", "items", "dictsort", "sort", "unique", "reverse", "split", "lines"),
        *("select", "reject", "selectattr", "rejectattr"),
    }
)
"""Filters that give a list of parts."""

ESCAPING = {"tojson": 6.0, "escape": 5.0, "e": 5.0, "urlencode": 12.0}
"""Filters that write a character as several, and how many."""

LIST_WISE = LIST_FILTERS | ELEMENTS | {"length", "count", "map", "join"}
"""Filters that look at what is in a list; to all others a list is a text."""

FILTERS = NUMBERS | PART_FILTERS | LIST_WISE | ESCAPING.keys() | {"replace", "indent"}
