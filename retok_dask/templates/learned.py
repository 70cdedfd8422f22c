"""What is learned of a template before it is used, and what workers get of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import jinja2.nodes as n

from retok_dask.templates.probes import probes
from retok_dask.templates.program import Learned
from retok_dask.templates.prove import Form, Setting, generation_prompt, prompt_texts, prove
from retok_dask.templates.shape import learn

if TYPE_CHECKING:
    import datetime as dt

    from retok_dask.templates.engines import JinjaEngine
    from retok_dask.templates.probes import Probe
    from retok_dask.templates.program import Program


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What probing found out about a template.

    Attributes:
        header: the role header of an assistant message.
        prefill: what the generation prompt adds after it.
        stops: texts of the tokens that end a turn; empty where the next role
            marker does or nothing does.
        marker_stops: whether the next role marker ends a turn.
        generation_tags: whether the template has ``{% generation %}`` tags.
        refused: probes that the template refuses, with its words.
        dropped: parts that probes lost: (probe, message, part).
        prints_date: whether it asks for the date.
        method: how messages are told apart.
        form: how it wants to be called.
        variables: variables that it reads, beside messages and tools.
    """

    header: str
    prefill: str
    stops: tuple[str, ...]
    marker_stops: bool
    generation_tags: bool
    refused: dict[str, str]
    dropped: tuple[tuple[str, int, str], ...]
    prints_date: bool
    method: str
    form: Form
    variables: tuple[str, ...]

    @classmethod
    def of(cls, text: str, program: Program) -> Self:
        """The facts of a template's text and its proved program."""
        learned, shape = program.learned, program.learned.shape
        names = {node.name for node in program.tree.find_all(n.Name) if node.ctx == "load"}
        names -= {node.name for node in program.tree.find_all(n.Name) if node.ctx != "load"}
        return cls(
            header=shape.header,
            prefill=shape.prefill,
            stops=tuple(dict.fromkeys(stop for stop, _ in shape.tails)),
            marker_stops=shape.marker_stops,
            generation_tags=bool(re.search(r"\{%-?\s*generation\s*-?%\}", text)),
            refused=learned.refused,
            dropped=learned.dropped,
            prints_date="strftime_now" in text,
            method=learned.method.describe(),
            form=learned.form,
            variables=tuple(sorted(names - {"messages", "tools", "add_generation_prompt"})),
        )

    @property
    def refuses_system(self) -> bool:
        """Whether a system message is an error for this template."""
        return "system" in self.refused and "turns" not in self.refused


@dataclass(slots=True)
class State:
    """All that a worker needs to render without proving again."""

    texts: dict[str, str]
    special_tokens: dict[str, str]
    added: tuple[str, ...]
    kwargs: dict[str, Any]
    date: dt.date
    history: str
    control_tokens: str
    system: str
    normalize: dict[str, Any]
    fast: bool
    learned: dict[str, Learned]


def learn_template(tree: n.Template, reference: JinjaEngine, setting: Setting, state: State) -> Learned:
    """Prove a template and learn the fixed text around its parts."""
    proof = prove(tree, reference, setting)
    prompt = generation_prompt(reference, proof.form, setting, probes())
    added = {*state.added, *(text for name, text in state.special_tokens.items() if name == "eos_token")}
    bos = state.special_tokens.get("bos_token", "")

    def prompts(probe: Probe, end: int) -> list[str]:
        return prompt_texts(reference, proof.form, setting, probe, end)

    shape = learn(proof.traces, prompt, added, bos, prompts)
    return Learned(
        engine=proof.engine,
        method=proof.method,
        form=proof.form,
        shape=shape,
        refused=proof.refused,
        dropped=tuple(proof.dropped()),
        tried=tuple(proof.tried),
        fuel=proof.fuel,
    )
