"""Make docs/static-and-continuous.png, the README's picture, from two real runs (`make picture`).

The bundled GPT-2 serves the same six requests twice, with static and with continuous batching. Its
tokens are real; the steps last what a cost model says for an H100, so that the picture comes out
the same on every machine.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from toyserve import LLM
from toyserve.viz import timeline
from toyserve.workload import make_workload

PICTURE = Path(__file__).parent / "static-and-continuous.png"


def main() -> None:
    workload = make_workload("continuous_example")
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1)
    for scheduler, ax in (("static", upper), ("continuous", lower)):
        llm = LLM("toy", scheduler=scheduler, max_running=4, clock="h100")
        llm.replay(workload)
        timeline(llm.recording, ax=ax)
    lower.set_xlim(upper.get_xlim())
    upper.set_xlabel("")
    _one_legend(figure, upper, lower)
    figure.savefig(PICTURE, dpi=130)
    print(PICTURE)


def _one_legend(figure: Figure, upper: Axes, lower: Axes) -> None:
    """The static batch shows every state there is; its legend serves both."""
    legend = upper.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    figure.legend(
        legend.legend_handles, names, loc="outside lower center", ncols=len(names), frameon=False
    )
    for ax in (upper, lower):
        ax.get_legend().remove()


if __name__ == "__main__":
    main()
