"""HTML of every view: Jinja2 templates that escape by default, and one style sheet.

Nothing here loads anything from elsewhere: no script, no font, no image.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from retok_dask.views import palette
from retok_dask.views.text import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retok_dask.views.conversation import ConversationView
    from retok_dask.views.summary import Summary
    from retok_dask.views.tokens import Box, TokenView


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("retok_dask.views", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"harmless": harmless, "one_line": one_line, "box_title": _box_title}
    environment.globals |= {"meanings": palette.MEANINGS, "verdicts": ("PASSED", "FAILED", "WARNING")}
    return environment


@cache
def style_sheet() -> str:
    """The CSS of all views, with the kinds' colours filled in."""
    text = files("retok_dask.views").joinpath("templates", "style.css").read_text(encoding="utf-8")
    light = "\n".join(f".rt-k-{kind}{{--kind:{s.light};--line:{s.strong}}}" for kind, s in palette.SHADES.items())
    dark = {kind: f"{{--kind:{s.dark};--line:{s.strong}}}" for kind, s in palette.SHADES.items()}
    jupyter = "\n".join(f"[data-jp-theme-light=false] .rt-k-{kind}{rule}" for kind, rule in dark.items())
    system = "\n".join(f":is(.rt-page,.rt-report) .rt-k-{kind}{rule}" for kind, rule in dark.items())
    return f"{text}\n{light}\n{jupyter}\n@media screen and (prefers-color-scheme:dark){{\n{system}\n}}\n"


def _box_title(box: Box, kind: str, message: int) -> str:
    """What hovering over a box says."""
    last = box.start + len(box.ids) - 1
    place = f"token {box.start:,}" if last == box.start else f"tokens {box.start:,}-{last:,}, one character"
    ids = " ".join(map(str, box.ids))
    owner = f"{kind}, message {message}" if message >= 0 else kind
    mask = "trained" if box.trained else "not trained"
    return f"{place}\nid {ids}\nbytes {box.data[:64].hex(' ')}\n{owner}\n{mask}"


def _fragment(template: str, fallback: str, **values: object) -> str:
    """A template's HTML with its style, and the plain text for places that strip the style.

    An untrusted notebook shows HTML without its style sheet; there the view
    stays hidden and the text is shown.
    """
    body = Markup(_environment().get_template(template).render(**values))  # noqa: S704  made by an escaping template
    outer = _environment().get_template("fragment.html.jinja")
    return outer.render(body=body, fallback=fallback, style=Markup(style_sheet()))  # noqa: S704  our own file


def token_fragment(view: TokenView) -> str:
    """The token view as HTML for a notebook cell."""
    return _fragment("tokens.html.jinja", view.to_text(), view=view)


def conversation_fragment(view: ConversationView) -> str:
    """A conversation as HTML for a notebook cell."""
    return _fragment("conversation.html.jinja", str(view), view=view)


def summary_fragment(summary: Summary) -> str:
    """A summary as HTML for a notebook cell."""
    return _fragment("summary.html.jinja", str(summary), summary=summary)


def plot_fragment(title: str, png: str, width: int, summary: Summary, fallback: str) -> str:
    """A plot (base64 PNG) above its table."""
    return _fragment("plot.html.jinja", fallback, title=title, data=png, width=width, summary=summary)


def stack_fragment(views: Sequence[tuple[str, str]], opened: int, nothing: str) -> str:
    """Fragments made here, each under its heading; the first `opened` ones unfolded; `nothing` where there are none."""
    marked = [(heading, Markup(body)) for heading, body in views]  # noqa: S704  made by escaping templates
    return _environment().get_template("stack.html.jinja").render(views=marked, open=opened, nothing=nothing)


def page(title: str, fragments: Sequence[str]) -> str:
    """A whole HTML file around fragments made here."""
    bodies = [Markup(fragment) for fragment in fragments]  # noqa: S704  made by escaping templates
    return _environment().get_template("page.html.jinja").render(title=title, bodies=bodies)
