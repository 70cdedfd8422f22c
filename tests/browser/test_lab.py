"""Seen by a browser: notebooks in a real JupyterLab, pages that need nothing from elsewhere."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retok_dask.demo import qwen_tokenizer_spec
from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import Tokenizer
from retok_dask.types import Kind, Rendered
from retok_dask.views import report, sample_page

if TYPE_CHECKING:
    from conftest import Lab

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

BAR = "div[style*='3b7dd8']"
LOOK = """selector => {
    const bar = document.querySelector(selector);
    return bar ? [parseFloat(bar.style.width), bar.parentElement.parentElement.innerText] : null;
}"""


def noisy(page: Any) -> tuple[list[str], list[str]]:
    """Console errors and requests of a page from now on."""
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    return errors, requests


def watch_run(page: Any, browser: Any, shots: Path) -> tuple[list[float], list[str], int]:
    """Watch a run to its end: shares shown by the bar, texts beside it, pictures that the task stream showed."""
    shares: list[float] = []
    texts: list[str] = []
    streams: set[str] = set()
    board = None
    end = time.monotonic() + 600
    while time.monotonic() < end:
        # one look: the output is replaced while it is looked at
        seen = page.evaluate(LOOK, BAR)
        if seen:
            shares.append(seen[0])
            texts.append(seen[1])
            link = page.locator(".jp-OutputArea a[href$='/status']")
            if board is None and link.count() and shares[-1] < 100:
                page.screenshot(path=shots / "run-in-lab.png")
                board = browser.new_page(viewport={"width": 1200, "height": 500})
                board.goto(link.first.get_attribute("href").replace("/status", "/individual-task-stream"))
        if board is not None and board.locator("canvas").count():
            picture = board.screenshot()
            streams.add(hashlib.sha256(picture).hexdigest())
            (shots / "task-stream.png").write_bytes(picture)
        if shares and shares[-1] >= 100:
            break
        time.sleep(0.3)
    if board is not None:
        board.close()
    return shares, texts, len(streams)


def test_a_run_in_jupyterlab_moves_its_bar_and_the_task_stream(lab: Lab, browser: Any, shots: Path) -> None:
    page = lab.open(browser, "03-plan-and-run.ipynb")
    lab.run_all(page)
    shares, texts, streams = watch_run(page, browser, shots)
    assert shares[-1] == 100
    assert len(set(shares)) > 2, "the bar moved"
    assert shares == sorted(shares), "and never back"
    assert re.search(r"units\s+\d+/\d+", texts[-1])
    assert streams > 2, "the task stream moved"
    lab.wait(page)
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator(".rt-plot img").count() >= 2
    page.screenshot(path=shots / "run-done.png")
    # the report on it, as `retok report` writes it, in a browser
    result = report(str(lab.folder / "demo-data" / "tokens"))
    assert result.passed, result.reasons
    sheet = browser.new_page(viewport={"width": 1200, "height": 1000})
    errors, requests = noisy(sheet)
    sheet.goto(Path(result.html).as_uri())
    sheet.wait_for_load_state("networkidle")
    assert errors == []
    assert requests == [Path(result.html).as_uri()] or all(url.startswith(("file://", "data:")) for url in requests), (
        requests
    )
    assert {url for url in requests if url.startswith("file:")} == {Path(result.html).as_uri()}
    assert "PASSED" in sheet.locator(".rt-verdict").first.inner_text()
    assert sheet.locator(".rt-verdict").first.bounding_box()["y"] < 200, "the verdict is on top"
    widths = sheet.locator("img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(widths) >= 8
    assert all(width > 300 for width in widths)
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut at the right"
    sheet.screenshot(path=shots / "report.png", full_page=True)
    sheet.emulate_media(color_scheme="dark")
    look = "selector => { const s = getComputedStyle(document.querySelector(selector)); return [s.backgroundColor, s.color]; }"
    (paper, _), (_, ink) = sheet.evaluate(look, "body"), sheet.evaluate(look, ".rt table.rt-table td")
    assert max(map(int, re.findall(r"\d+", paper)[:3])) < 60, "a dark page for those who read dark pages"
    assert min(map(int, re.findall(r"\d+", ink)[:3])) > 180
    sheet.screenshot(path=shots / "report-dark.png", full_page=True)


def test_tokens_and_plots_in_light_and_dark(lab: Lab, browser: Any, shots: Path) -> None:
    page = lab.open(browser, "02-template-and-mask.ipynb")
    lab.run_all(page)
    lab.wait(page)
    boxes = page.locator(".rt-t.rt-m")
    assert boxes.count() > 50
    for theme, name in (("JupyterLab Light", "light"), ("JupyterLab Dark", "dark")):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        page.wait_for_function(f"document.body.dataset.jpThemeLight === '{'true' if name == 'light' else 'false'}'")
        page.wait_for_timeout(1500)
        boxes.first.scroll_into_view_if_needed()
        seen = boxes.first.evaluate(
            "e => { const s = getComputedStyle(e); return [s.borderBottomStyle, s.borderBottomColor, s.backgroundColor, s.color]; }"
        )
        plain = page.locator(".rt-t:not(.rt-m)").first.evaluate("e => getComputedStyle(e).borderBottomColor")
        assert seen[0] == "solid"
        assert seen[1] != plain, "trained tokens are underlined, others are not"
        ink = [int(part) for part in re.findall(r"\d+", seen[3])[:3]]
        paper = [int(part) for part in re.findall(r"\d+", seen[2])[:3]]
        assert abs(sum(ink) - sum(paper)) > 250, "ink stands out from its paper"
        page.screenshot(path=shots / f"tokens-{name}.png")
    assert "id " in boxes.first.get_attribute("title")
    assert page.locator(".rt-fallback").first.is_hidden()


def test_explore_draws_conversations(lab: Lab, browser: Any, shots: Path) -> None:
    page = lab.open(browser, "01-explore-completions.ipynb")
    lab.run_all(page)
    lab.wait(page)
    assert page.locator(".rt-turn").count() > 5
    image = page.locator(".rt-plot img").first
    image.scroll_into_view_if_needed()
    assert image.evaluate("e => e.naturalWidth") > 600
    page.screenshot(path=shots / "explore.png")


def test_hostile_text_does_nothing(browser: Any, shots: Path, tmp_path: Path) -> None:
    text = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x' onerror=alert(1)>\u202eevil </style>"
    tokenizer = Tokenizer.load(TokenizerSpec(**qwen_tokenizer_spec()), engine="reference")
    encoded = tokenizer.encode([Rendered(text, [0], [int(Kind.user)], [0])])
    ids = encoded.ids.tolist()
    sample = {
        "sample_id": text,
        "input_ids": ids,
        "loss_mask": [True] * len(ids),
        "segments": [(0, len(ids), "user", 0)],
        "source_file": text,
        "source_row": 0,
    }
    path = tmp_path / "sample.html"
    path.write_text(sample_page(sample, tokenizer), encoding="utf-8")
    page = browser.new_page()
    errors, requests = noisy(page)
    page.on("dialog", lambda dialog: errors.append("dialog"))
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    assert errors == []
    assert requests == [path.as_uri()]
    assert "owned" not in page.title().split("<")[0]
    assert page.locator("img").count() == 0
    assert page.locator(".rt").first.is_visible()
    page.screenshot(path=shots / "hostile.png")
