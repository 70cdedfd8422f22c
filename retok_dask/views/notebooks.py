"""Running the shipped notebooks unattended, by papermill, with an end that is never in doubt.

:func:`run_notebook` always leaves an .ipynb and an .html, says on top whether
it passed, and leaves no process behind, also when the kernel dies.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from retok_dask.doing import doing
from retok_dask.errors import OutputError, RecipeError, did_you_mean
from retok_dask.views.parameters import check_parameters, declared_parameters
from retok_dask.views.summary import Summary, cell
from retok_dask.views.text import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbformat import NotebookNode

VERDICT_MIME = "application/vnd.retok.verdict+json"
TOP_TAG = "retok-verdict"
STOPPED_TAG = "retok-stopped"
_MARK = "RETOK_NOTEBOOK_RUN"
_PROGRESS = "RETOK_PROGRESS"
_GRACE = 5.0
"""Seconds that processes of a notebook get to end by themselves after it."""


@dataclass(frozen=True)
class NotebookRun:
    """How a notebook ended.

    Attributes:
        notebook, html: paths of what was written.
        passed: it ran to its end, and gave no verdict or a good one.
        judged: it gave a verdict.
        reasons: failed checks, or why it stopped.
        parameters: the effective ones.
        figures: numbers that the verdict carries.
    """

    notebook: str
    html: str
    passed: bool
    reasons: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    judged: bool = False

    @property
    def verdict(self) -> str:
        """``PASSED`` or ``FAILED``; ``RAN`` for a notebook that came to its end and judges nothing."""
        if not self.passed:
            return "FAILED"
        return "PASSED" if self.judged else "RAN"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}

    def summary(self) -> Summary:
        """Verdict, reasons, and where the files are."""
        facts = [("report", self.html), ("notebook", self.notebook)]
        facts += [(name, cell(value)) for name, value in self.figures.items()]
        return Summary("Report", self.verdict, [harmless(reason) for reason in self.reasons[:20]], facts)

    def to_text(self) -> str:
        return self.summary().to_text()

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


@dataclass(frozen=True)
class Verdict:
    """What a notebook found; displayed in it, and read back by :func:`run_notebook`."""

    passed: bool
    failed: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002
        summary = Summary("Verdict", "PASSED" if self.passed else "FAILED", [f"failed: {name}" for name in self.failed])
        summary.facts = [(name, cell(value)) for name, value in self.figures.items()]
        return {VERDICT_MIME: asdict(self), "text/html": summary._repr_html_(), "text/plain": str(summary)}


def verdict(report: Any, run: Any | None = None) -> Verdict:
    """The verdict of a validation report, with the main numbers of the run.

    Args:
        report: a :class:`retok_dask.checks.ValidationReport`.
        run: a :class:`retok_dask.views.WrittenRun`.
    """
    failed = tuple(check.name for check in report.failed if check.severity == "error")
    figures: dict[str, Any] = {"run": report.url}
    if run is not None:
        stats = run.datasets.values()
        tokens, trained = (sum(each[name] for each in stats) for name in ("tokens", "loss_tokens"))
        figures |= {"samples": sum(each["samples"] for each in stats), "tokens": tokens, "trained tokens": trained}
    return Verdict(report.passed, failed, figures)


def notebooks_folder() -> Path:
    """Where the numbered notebooks are: in the wheel, or at the top of a checkout.

    Raises:
        RecipeError: the installation has lost them.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "notebook_files", here.parents[1] / "notebooks"):
        if any(folder.glob("[0-9][0-9]-*.ipynb")):
            return folder
    msg = f"the notebooks are missing from this installation ({here / 'notebook_files'}); install the package again"
    raise RecipeError(msg)


def find_notebook(name: str | Path) -> Path:
    """A notebook by path, or a shipped one by name or number (``"04"``).

    Raises:
        RecipeError: there is no such notebook.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = {path.stem: path for path in sorted(notebooks_folder().glob("[0-9][0-9]-*.ipynb"))}
    for stem, path in shipped.items():
        if str(name) in {stem, stem[:2], path.name}:
            return path
    msg = f"there is no notebook {str(name)!r}.{did_you_mean(str(name), shipped)}"
    raise RecipeError(msg)


def run_notebook(
    name: str | Path,
    to: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    stem: str | None = None,
    cell_seconds: int | None = None,
    code: bool = True,
) -> NotebookRun:
    """Run a notebook by papermill; writes ``<to>/<stem>.ipynb`` and ``.html``.

    Args:
        name: path, name or number of the notebook.
        to: a local folder, made if it is missing.
        parameters: by name; text is read as the declared type.
        stem: of the written files; the notebook's by default.
        cell_seconds: a cell that takes longer fails; None for no limit.
        code: whether the HTML shows the code cells.

    Raises:
        RecipeError: no such notebook, an unknown parameter, or a value of
            another type.
        OutputError: nothing can be written to the folder. What goes wrong later is in the result.
    """
    import nbformat  # noqa: PLC0415

    source = find_notebook(name)
    declared = declared_parameters(nbformat.read(source, as_version=4), source.name)
    effective = check_parameters(declared, parameters or {})
    target = Path(to) / f"{stem or source.stem}.ipynb"
    page = target.with_suffix(".html")
    _clear(target, page)
    doing(f"executing {source.name}")
    problem = _execute(source, target, effective, cell_seconds)
    notebook = nbformat.read(target if target.exists() else source, as_version=4)
    if problem:
        problem = _mark_stopped(notebook, problem)
    verdict = _read_verdict(notebook)
    reasons = [problem] if problem else []
    reasons += [f"failed check: {each}" for each in verdict.failed] if verdict else []
    passed = not problem and (verdict is None or verdict.passed)
    figures = verdict.figures if verdict else {}
    run = NotebookRun(str(target), str(page), passed, reasons, effective, figures, verdict is not None)
    _put_on_top(notebook, run)
    nbformat.write(notebook, target)
    page.write_text(to_html(notebook, title=target.stem, code=code), encoding="utf-8")
    return run


def _clear(*files: Path) -> None:
    """Make the folder of some files to write, and leave none of an earlier run there."""
    try:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.touch()
            file.unlink()
    except OSError as error:
        msg = f"cannot write {str(file)!r}: {error.strerror}; name a folder that can be written to"
        raise OutputError(msg) from error


def _execute(source: Path, target: Path, parameters: dict[str, Any], cell_seconds: int | None) -> str:
    """Run it; returns why it stopped, or an empty text."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError  # noqa: PLC0415
    from papermill import execute_notebook  # noqa: PLC0415
    from papermill.exceptions import PapermillExecutionError  # noqa: PLC0415

    with _marked_processes():
        try:
            execute_notebook(
                str(source),
                str(target),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                execution_timeout=cell_seconds,
                cwd=str(Path.cwd()),
                # the kernel's own warnings are about its transport, and not for who reads the report's console
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
        except PapermillExecutionError as error:
            return f"{error.ename}: {one_line(error.evalue, 600)}"
        except DeadKernelError:
            return "the kernel died (killed, most likely for memory); the report is partial"
        except CellTimeoutError:
            return f"it took longer than {cell_seconds} s; the report is partial"
        except RuntimeError as error:  # a kernel that never came up
            return f"the kernel did not start: {one_line(error, 300)}"
    return ""


@contextlib.contextmanager
def _marked_processes() -> Iterator[None]:
    """End every process that the block's kernel leaves behind, and no other.

    The kernel and its workers inherit a mark in their environment; a worker
    whose kernel was killed is found by it. Nobody looks on, so progress is
    plain lines, unless the environment says otherwise.
    """
    mark = uuid.uuid4().hex
    before = dict(os.environ)
    os.environ[_MARK] = mark
    os.environ.setdefault(_PROGRESS, "lines")
    try:
        yield
    finally:
        for name in (_MARK, _PROGRESS):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        _end(mark)


def _end(mark: str) -> None:
    left = _with_mark(mark)
    if not left:
        return
    _, left = psutil.wait_procs(left, timeout=_GRACE)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with contextlib.suppress(psutil.Error):
                end(process)
        _, left = psutil.wait_procs(left, timeout=_GRACE)


def _with_mark(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _mark_stopped(notebook: NotebookNode, problem: str) -> str:
    """Mark the cell that did not end, and those after it; returns the problem with its place."""
    from nbformat.v4 import new_output  # noqa: PLC0415

    # papermill notes for every cell that it began whether there was an exception
    code = [each for each in notebook.cells if each.cell_type == "code"]
    begun = [each for each in code if each.metadata.get("papermill", {}).get("exception") is not None]
    for each in code[len(begun) :]:
        each.metadata.setdefault("papermill", {})["status"] = "pending"
    if not begun:
        return problem
    last = begun[-1]
    last.metadata["papermill"]["status"] = "failed"
    last.metadata["tags"] = [*last.metadata.get("tags", []), STOPPED_TAG]
    if not any(output.output_type == "error" for output in last.outputs):
        last.outputs.append(
            new_output("error", ename="Stopped", evalue=problem, traceback=[f"Stopped here: {problem}"])
        )
    first_line = (last.source.strip() or "(empty)").splitlines()[0]
    return f"in the cell that begins with `{one_line(first_line, 80)}`: {problem}"


def _read_verdict(notebook: NotebookNode) -> Verdict | None:
    """The last verdict that was displayed."""
    for each in reversed(notebook.cells):
        for output in reversed(each.get("outputs", [])):
            data = output.get("data", {}).get(VERDICT_MIME)
            if data is not None:
                return Verdict(bool(data["passed"]), tuple(data["failed"]), data["figures"])
    return None


def _put_on_top(notebook: NotebookNode, run: NotebookRun) -> None:
    """The verdict as the first thing that a reader sees."""
    from nbformat.v4 import new_code_cell, new_output  # noqa: PLC0415

    summary = run.summary()
    summary.title = "Verdict" if run.judged or not run.passed else "Notebook"
    summary.facts = [(name, cell(value)) for name, value in run.figures.items()]
    summary.facts += [
        (f"parameter {name}", cell(value)) for name, value in run.parameters.items() if value not in ("", None)
    ]
    data = {"text/html": summary._repr_html_(), "text/plain": str(summary)}
    top = new_code_cell(
        "", outputs=[new_output("display_data", data)], metadata={"tags": [TOP_TAG], "jupyter": {"source_hidden": True}}
    )
    notebook.cells = [
        each for each in notebook.cells if "papermill-error-cell-tag" not in each.metadata.get("tags", [])
    ]
    notebook.cells.insert(0, top)


def to_html(notebook: NotebookNode, *, title: str, code: bool = True) -> str:
    """A notebook as one HTML file that loads nothing from elsewhere."""
    from nbconvert import HTMLExporter  # noqa: PLC0415  heavy, and only for those who run notebooks
    from traitlets.config import Config  # noqa: PLC0415

    exporter = HTMLExporter(
        template_name="retok_report",
        extra_template_basedirs=[str(Path(__file__).parent / "nbconvert")],
        exclude_input=not code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
        config=Config(
            {"TagRemovePreprocessor": {"enabled": True, "remove_input_tags": {TOP_TAG, "injected-parameters"}}}
        ),
    )
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    return str(body)
