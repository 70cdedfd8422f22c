"""A second oracle: model families written as code, with a bit for each token that the model samples."""

from __future__ import annotations

import copy
import itertools
import re
import subprocess
import sys
from functools import cache

import assets
import pytest
from templates_common import MARKERS, Facts, load, public_texts, trained
from transformers import AutoTokenizer

from retok_dask.templates.probes import TOOLS, Probe, calls, probes, result, user
from retok_dask.types import Conversation

# beside their own policy: what each edit takes off one side, and why the two differ there
EMPTY = ("theirs", r"^<think>\s*</think>\s*", "they count an empty think block as sampled; nobody samples it")
PREFILL = ("theirs", r"^<think>\n?", "they count what the generation prompt has written as sampled")
OPENER = ("ours", r"^<think>\n?", "the same text, which here the model writes itself")
NEWLINE = ("ours", r"^\n", "a newline that the generation prompt does not hold, so that the model writes it")
CALL_IDS = ("both", r"functions\.\w+:\d+|call\d{5}", "they print the call's id, the template a number of its own")
HARMONY = (
    "ours",
    r"(<\|start\|>assistant)?( to=functions\.\w+)?<\|channel\|>\w+( json)?<\|message\|>",
    "they count channel and recipient as header; the generation prompt ends at `assistant`, so the model writes them",
)
CLOSED_TURN = (
    "ours",
    r"Rsn\w ponders something\.<\|end\|>",
    "they print no reasoning of a turn that has its answer, the template that of the last one",
)
OUTPUTS_END = (
    "ours",
    r"^<｜tool▁outputs▁end｜>",
    "the generation prompt after a tool's result does not hold it; trl trains it too",
)

FAMILIES = {
    "Qwen3RendererConfig": ("trl/qwen3", [EMPTY], ()),
    "Qwen36RendererConfig": ("trl/qwen3_6", [EMPTY, PREFILL, OPENER], ()),
    "GLM45RendererConfig": ("trl/glm4moe", [EMPTY, NEWLINE], ()),
    "KimiK2RendererConfig": ("llama-cpp-python/moonshotai-Kimi-K2", [CALL_IDS], ()),
    # theirs prints other text between two calls, and the content that this template drops beside a call
    "DeepSeekV3RendererConfig": ("trl/deepseekv3", [OUTPUTS_END], ("parallel", "agent")),
    # the template refuses parallel calls
    "Llama3RendererConfig": ("trl/llama3_1", [], ("parallel",)),
    "Nemotron3RendererConfig": ("trl/nemotron_3_nano", [EMPTY, PREFILL], ()),
    "MiniMaxM2RendererConfig": ("llama-cpp-python/MiniMax-M2", [PREFILL, NEWLINE], ()),
    # the template drops the content and the second call that they print, and refuses content beside reasoning
    "GptOssRendererConfig": ("trl/gptoss", [HARMONY, CLOSED_TURN], ("call_with_text", "parallel", "agent")),
}
SHAPES = ("plain", "turns", "system", "reasoning", "call", "call_with_text", "call_with_reasoning", "parallel", "agent")
MORE_TOKENS = "[gMASK] <sop> <|begin_of_text|> <|eot_id|> <|eom_id|> <|python_tag|> <|start_header_id|> <|end_header_id|> <|end_of_text|> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <|observation|> <arg_key> </arg_key> <arg_value> </arg_value> [EOS] [BOS] /nothink ]~!b[ ]~b] [e~[ <minimax:tool_call> </minimax:tool_call>"


@cache
def renderers():
    """The package, installed beside the other assets and imported after everything that is here already."""

    def fill(folder):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder)]
        subprocess.run([*pip, "--no-deps", "renderers==0.1.12"], check=True)
        subprocess.run(
            [*pip, "openai==1.109.1", "openai-harmony==0.0.8", "prime-pydantic-config>=0.3.0.dev83"], check=True
        )

    sys.path.append(str(assets._once("renderers-0.1.12", fill)))
    import renderers as package

    return package


@cache
def tokenizer_for(name: str):
    """A real tokenizer that also holds the markers of a template as single tokens."""
    text = public_texts()[name]
    if name == "trl/gptoss":  # their renderer writes ids of its own vocabulary, which is this tokenizer's
        tokenizer = AutoTokenizer.from_pretrained(assets.tokenizer_folder("gptoss"))
        tokenizer.chat_template = text
        return tokenizer
    tokenizer = AutoTokenizer.from_pretrained(assets.tokenizer_folder("qwen3"))
    wanted = dict.fromkeys([*MARKERS.findall(text), *MORE_TOKENS.split()])
    known = tokenizer.get_vocab()
    tokenizer.add_special_tokens({"additional_special_tokens": [token for token in wanted if token not in known]})
    tokenizer.chat_template = text
    if "llama" in name:
        tokenizer.bos_token = "<|begin_of_text|>"
    if "deepseek" in name:
        tokenizer.bos_token, tokenizer.eos_token = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    return tokenizer


def sampled(renderer, tokenizer, probe) -> list[str]:
    """What they count as sampled, a text for each run; one a message where headers stand between its parts."""
    row = renderer.render(copy.deepcopy(probe.messages), tools=[tool["function"] for tool in probe.tools or []] or None)
    tokens = list(zip(row.token_ids, row.sampled_mask, row.message_indices, strict=True))
    if type(renderer).__name__ == "GptOssRenderer":
        tokens = [token for token in tokens if token[1]]
    groups = itertools.groupby(tokens, key=lambda token: token[1:])
    return [tokenizer.decode([token[0] for token in group]) for (trains, _), group in groups if trains]


def edited(texts: list[str], side: str, edits) -> list[str]:
    for which, pattern, _ in edits:
        if which in (side, "both"):
            texts = [re.sub(pattern, "", text) for text in texts]
    return texts


def both_sides(family):
    """Their renderer, its tokenizer, and the template on the same tokenizer's facts."""
    package = renderers()
    config = getattr(__import__("renderers.configs", fromlist=["configs"]), family)
    tokenizer = tokenizer_for(FAMILIES[family][0])
    special = {key: text for key, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    template = load("", tokenizer=Facts(tokenizer.chat_template, special, dict(tokenizer.get_added_vocab())))
    return package.create_renderer(tokenizer, config()), tokenizer, template


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch):
    """gpt-oss is rendered by a library that would download its vocabulary; here it reads the one rebuilt and checked."""
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(assets.o200k_folder()))


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_tokens_are_the_trained_ones(family):
    _, edits, other_text = FAMILIES[family]
    renderer, tokenizer, template = both_sides(family)
    compared = 0
    for probe in probes():
        if probe.name in SHAPES and probe.name not in other_text:
            ours = trained(template.render(Conversation(probe.messages, probe.tools))[0])
            assert edited(ours, "ours", edits) == edited(sampled(renderer, tokenizer, probe), "theirs", edits), (
                probe.name
            )
            compared += 1
    assert compared == len(SHAPES) - len(other_text)


def test_gpt_oss_trains_the_reasoning_of_an_open_tool_cycle():
    renderer, tokenizer, template = both_sides("GptOssRendererConfig")
    probe = Probe("open_cycle", [user("a"), calls("b", reasoning=True), result("c", "b")], TOOLS)
    expected = ['Rsnb ponders something.<|end|>{"city": "Argbx"}<|call|>']
    assert sampled(renderer, tokenizer, probe) == expected
    ours = trained(template.render(Conversation(probe.messages, probe.tools))[0])
    assert edited(ours, "ours", [HARMONY]) == expected
