"""Two builds of a lesson are equal byte for byte, and a measured number stays until asked for."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from toyserve.course import builder
from toyserve.course.builder import BuildError, build, find_sources, read_source
from toyserve.course.normalise import NotReproducible, normalise, strip_png

SOURCE = """# %% [markdown]
# # A small lesson
# with é and →

# %%
import time
print(object())
{"a": {1, 2}}

# %% tags=["wall-clock"]
print(time.perf_counter_ns())

# %%
from toyserve.viz.style import new_axes, THEMES
axes = new_axes((2, 1), THEMES["light"])
axes[0].plot([1, 2]);
axes[0].figure

# %%
from toyserve.course.quiz import quiz
quiz("04.first-entry")
"""


def lesson(folder: Path, text: str = SOURCE) -> Path:
    source = folder / "lessons" / "source" / "07_small.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text, encoding="utf-8")
    return source


def outputs(notebook: Path) -> list[str]:
    cells = nbformat.reads(notebook.read_text(encoding="utf-8"), as_version=4).cells
    return [json.dumps(cell.outputs) for cell in cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source in a folder with a space and an é, and its notebook."""
    source = lesson(tmp_path_factory.mktemp("eine Übung é"))
    target = builder.target_of(source)
    assert builder.main(["07", "--lessons", str(target.parent)]) == 0
    return source, target


def test_two_builds_are_byte_identical(built: tuple[Path, Path]) -> None:
    source, target = built
    assert build(source, target) == target.read_text(encoding="utf-8")
    assert builder.main(["--check", "--lessons", str(target.parent)]) == 0


def test_the_notebook_carries_nothing_of_the_run_that_made_it(built: tuple[Path, Path]) -> None:
    text = built[1].read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert "é and →" in text
    assert "widgets" not in notebook["metadata"]
    assert "widget-view" not in text
    assert "execution" not in json.dumps([cell["metadata"] for cell in notebook["cells"]])
    assert "<object object at 0x…>" in text
    assert "Software" not in text
    assert str(built[0].parents[2]) not in text
    assert notebook["metadata"]["toyserve"]["source"] == "lessons/source/07_small.py"
    assert sum("image/png" in output for output in outputs(built[1])) == 1


def test_a_quiz_is_readable_and_its_answer_folded_away(built: tuple[Path, Path]) -> None:
    (output,) = json.loads(outputs(built[1])[-1])
    page = "".join(output["data"]["text/html"])
    assert "Predict." in page
    assert "<details>" in page
    assert page.index("<details>") < page.index("Near misses")


def test_wall_clock_output_stays_until_remeasured(built: tuple[Path, Path]) -> None:
    source, target = built
    old, again = outputs(target)[1], build(source, target)
    fresh = build(source, target, remeasure=True)
    measured = [nbformat.reads(text, as_version=4).cells[2] for text in (again, fresh)]
    assert json.dumps(measured[0].outputs) == old
    assert json.dumps(measured[1].outputs) != old
    cell = measured[1]
    assert "CPUs, Python" in cell["metadata"]["toyserve"]["measured"]


def test_wall_clock_output_goes_when_the_code_before_it_changes(tmp_path: Path) -> None:
    before = read_source(lesson(tmp_path, "# %%\nx = 1\n# %% tags=['wall-clock']\nprint(x)\n"))
    after = read_source(lesson(tmp_path, "# %%\nx = 2\n# %% tags=['wall-clock']\nprint(x)\n"))
    assert len(builder.keep_measured(before, None, remeasure=False)) == 1
    assert builder.keep_measured(read_source(lesson(tmp_path, "# %%\nx = 1\n# %% "
        "tags=['wall-clock']\nprint(x)\n")), before, remeasure=False) == []  # fmt: skip
    assert len(builder.keep_measured(after, before, remeasure=False)) == 1


def test_wall_clock_output_goes_when_the_bundled_model_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lesson(tmp_path, "# %% tags=['wall-clock']\n1\n")
    before = read_source(source)
    builder.keep_measured(before, None, remeasure=False)
    monkeypatch.setattr(builder, "_model_digest", lambda: "other weights")
    assert len(builder.keep_measured(read_source(source), before, remeasure=False)) == 1


def test_cell_ids_depend_on_content_and_twins_get_different_ones(tmp_path: Path) -> None:
    ids = [c.id for c in read_source(lesson(tmp_path, "# %%\n1\n# %%\n1\n# %%\n2\n")).cells]
    assert len(set(ids)) == 3
    moved = [c.id for c in read_source(lesson(tmp_path, "# %%\n2\n# %%\n1\n# %%\n1\n")).cells]
    assert moved == [ids[2], ids[0], ids[1]]


def test_an_error_in_a_cell_stops_the_build_and_leaves_the_old_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lesson(tmp_path, "# %% [markdown]\n# # T\n# %%\nraise RuntimeError('broken here')\n")
    builder.write(builder.target_of(source), "old")
    assert builder.main(["--lessons", str(source.parents[1])]) == 1
    assert "broken here" in capsys.readouterr().err
    assert builder.target_of(source).read_text(encoding="utf-8") == "old"


def test_check_writes_nothing_and_fails_on_a_difference(tmp_path: Path) -> None:
    source = lesson(tmp_path, "# %% [markdown]\n# # T\n")
    builder.write(builder.target_of(source), "old")
    assert builder.main(["--check", "--lessons", str(source.parents[1])]) == 1
    assert builder.target_of(source).read_text(encoding="utf-8") == "old"


def test_an_unknown_number_is_refused_with_those_there_are(tmp_path: Path) -> None:
    folder = lesson(tmp_path).parents[1]
    with pytest.raises(BuildError, match=r"no lesson '42'.*07_small"):
        find_sources(folder, ["42"])


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (nbformat.v4.new_output("stream", name="stderr", text="a warning"), "stderr"),
        (nbformat.v4.new_output("stream", name="stdout", text="in /home/me/x"), "/home/me"),
    ],
)
def test_outputs_that_belong_to_this_machine_are_refused(
    output: nbformat.NotebookNode, reason: str
) -> None:
    cell = nbformat.v4.new_code_cell("print()", outputs=[output])
    with pytest.raises(NotReproducible, match=reason):
        normalise(nbformat.v4.new_notebook(cells=[cell]), forbidden=("/home/me",))


def test_a_png_loses_its_comments_and_keeps_its_pixels() -> None:
    import io

    import matplotlib.image
    import numpy as np

    files = [io.BytesIO(), io.BytesIO()]
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    for file, note in zip(files, ("one", "two"), strict=True):
        matplotlib.image.imsave(file, pixels, format="png", metadata={"Comment": note})
    one, two = (strip_png(file.getvalue()) for file in files)
    assert files[0].getvalue() != files[1].getvalue()
    assert one == two
    read = matplotlib.image.imread(io.BytesIO(one), format="png")[:, :, :3]
    assert np.array_equal((read * 255).round().astype(np.uint8), pixels)
