"""Draws the diagrams of `docs/`, for light and for dark pages: `python docs/diagrams.py`."""

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from string import Template

HERE = Path(__file__).parent
COLORS = {
    "": {
        "page": "#ffffff", "ink": "#24292f", "muted": "#57606a", "line": "#8c959f",
        "prompt": "#bcd7f2", "response": "#f6d2a8", "box": "#f6f8fa", "own": "#d9e9f9",
    },
    "-dark": {
        "page": "#0d1117", "ink": "#e6edf3", "muted": "#9da7b3", "line": "#6e7681",
        "prompt": "#1f5378", "response": "#7a4d1a", "box": "#161b22", "own": "#17324a",
    },
}  # fmt: skip
"""What is added to a file's name, and its colors."""


def text(x: float, y: float, words: str, *, size: int = 15, more: str = "") -> str:
    """A line of text; `more` are further attributes."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {more}>{escape(words)}</text>'


def arrow(path: str, more: str = "") -> str:
    """A line with a head, along an SVG path."""
    return f'<path d="{path}" fill="none" stroke="$line" stroke-width="2" marker-end="url(#head)" {more}/>'


def architecture() -> tuple[int, int, list[str]]:
    """From data to the report, and from synthesis to a trained model."""
    width, height, gap_x, gap_y, edge = 192, 92, 40, 44, 6
    boxes = [
        [
            ("Data", "files, Hub, benchmarks,", "generated worlds"),
            ("Comparisons", "a prompt, N responses,", "gold ranks"),
            ("Queries", "without the gold,", "in several orders"),
        ],
        [
            ("Synthesis", "short judgments on", "long contexts"),
            ("Training", "Bradley-Terry, SFT,", "preference, GRPO"),
            ("Reward model", "scalar or generative,", "local or over HTTP"),
        ],
        [
            ("Report", "figures, tables,", "every comparison"),
            ("Metrics, boundary", "accuracy by length,", "with 95% intervals"),
            ("Judgments", "scores or an order,", "and the outcome"),
        ],
    ]
    shapes = []
    for row, cells in enumerate(boxes):
        for column, (title, *lines) in enumerate(cells):
            x, y = edge + column * (width + gap_x), edge + row * (height + gap_y)
            own = "own" if title in ("Reward model", "Metrics, boundary") else "box"
            shapes.append(
                f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="${own}" stroke="$line"/>'
            )
            shapes.append(text(x + width / 2, y + 29, title, size=18, more='font-weight="600"'))
            shapes += [
                text(x + width / 2, y + 52 + 20 * at, line, more='fill="$muted"')
                for at, line in enumerate(lines)
            ]
    across, down = width + gap_x, height + gap_y
    middle = edge + height / 2
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        shapes.append(arrow(f"M{edge + column * across + width + 3} {middle + row * down}h{gap_x - 9}"))
    for column in (1, 2):
        shapes.append(arrow(f"M{edge + column * across - 3} {middle + 2 * down}h{9 - gap_x}"))
    for row, column in ((0, 0), (0, 1), (0, 2), (1, 2)):
        shapes.append(
            arrow(f"M{edge + column * across + width / 2} {edge + row * down + height + 3}v{gap_y - 9}")
        )
    # The gold skips the model.
    aside = edge + across - gap_x / 2
    shapes.append(
        arrow(
            f"M{edge + across + 20} {edge + height + 3}v{gap_y / 2 - 3}H{aside}V{2 * down + edge - gap_y / 2}"
            f"H{edge + across + 40}v{gap_y / 2 - 6}",
            'stroke-dasharray="4 4"',
        )
    )
    shapes.append(text(aside + 8, edge + height + 38, "gold", more='fill="$muted" text-anchor="start"'))
    return 2 * edge + 3 * width + 2 * gap_x, 2 * edge + 3 * height + 2 * gap_y, shapes


def shared_prefix() -> tuple[int, int, list[str]]:
    """One prompt with four responses, as separate sequences and as one."""
    prompt, response, bar, step = 400, 96, 30, 38
    shapes, y = [], 28
    start = 'text-anchor="start"'
    shapes.append(text(4, y - 8, "Separate sequences", size=18, more=f'{start} font-weight="600"'))
    for number in range(1, 5):
        shapes += _bar(4, y, prompt, bar, "prompt", "prompt")
        shapes += _bar(4 + prompt, y, response, bar, "response", f"response {number}")
        y += step
    shapes.append(text(4, y + 12, "4 × (4,096 + 128) = 16,896 tokens", more=f'{start} fill="$muted"'))
    y += 60
    shapes.append(text(4, y - 8, "Shared prefix", size=18, more=f'{start} font-weight="600"'))
    middle = y + 1.5 * step
    shapes += _bar(4, middle, prompt, bar, "prompt", "prompt, encoded once")
    for number in range(1, 5):
        shapes += _bar(4 + prompt + 56, y, response, bar, "response", f"response {number}")
        a, b = middle + bar / 2, y + bar / 2
        shapes.append(arrow(f"M{4 + prompt + 3} {a}C{prompt + 32} {a} {prompt + 28} {b} {prompt + 55} {b}"))
        y += step
    shapes.append(
        text(4, y + 12, "4,096 + 4 × 128 = 4,608 tokens, the same scores", more=f'{start} fill="$muted"')
    )
    return 4 + prompt + 56 + response + 4, y + 24, shapes


def token_tree() -> tuple[int, int, list[str]]:
    """A tree of three levels, its packed sequence, and what one of its leaves sees."""
    bar, step = 30, 38
    heading, start = 'text-anchor="start" font-weight="600"', 'text-anchor="start" fill="$muted"'
    shapes = [text(4, 20, "A tree", size=18, more=heading)]
    judgments = [28 + step * at for at in range(4)]
    orders = [(judgments[at] + judgments[at + 1]) / 2 for at in (0, 2)]
    context = sum(orders) / 2
    shapes += _bar(4, context, 220, bar, "prompt", "context")
    for order, name in zip(orders, ("A, B", "B, A"), strict=True):
        a, b = context + bar / 2, order + bar / 2
        shapes.append(arrow(f"M227 {a}C250 {a} 248 {b} 273 {b}"))
        shapes += _bar(278, order, 100, bar, "own", name)
    for at, judgment in enumerate(judgments):
        a, b = orders[at // 2] + bar / 2, judgment + bar / 2
        shapes.append(arrow(f"M381 {a}C402 {a} 400 {b} 425 {b}"))
        shapes += _bar(430, judgment, 126, bar, "response", f"judgment {at + 1}")
    nodes = [("context", 140, "prompt")]
    for order in (0, 1):
        nodes.append(("A, B" if not order else "B, A", 54, "own"))
        nodes += [(f"judg. {2 * order + 1 + at}", 76, "response") for at in (0, 1)]
    ends = [4]
    for _, width, _ in nodes:
        ends.append(ends[-1] + width)
    y = judgments[-1] + 76
    shapes.append(text(4, y, "Its packed sequence, every node once", size=18, more=heading))
    y += 54
    for (name, width, color), x in zip(nodes, ends, strict=False):
        shapes += _bar(x, y, width, bar, color, name)
    # Children that do not follow their parent directly.
    for parent, child in ((1, 3), (0, 4), (4, 6)):
        a, b, top = ends[parent + 1] - 5, ends[child] + 5, y - (42 if parent == 0 else 22)
        shapes.append(
            arrow(f"M{a} {y - 2}C{a + 8} {top} {b - 8} {top} {b} {y - 5}", 'stroke-dasharray="4 4"')
        )
    shapes.append(text(4, y + 53, "Positions and recurrent states continue those of the parent.", more=start))
    y += 94
    shapes.append(text(4, y, "What judgment 4 attends to", size=18, more=heading))
    for (name, width, color), x, seen in zip(nodes, ends, (1, 0, 0, 0, 1, 0, 1), strict=False):
        shapes += _bar(x, y + 12, width, bar, color if seen else "page", name if seen else "")
    return 560, y + 48, shapes


def _bar(x: float, y: float, width: float, height: float, color: str, label: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="${color}" stroke="$line"/>',
        text(x + width / 2, y + height / 2 + 5, label),
    ]


DIAGRAMS: Mapping[str, Callable[[], tuple[int, int, list[str]]]] = {
    "architecture": architecture,
    "shared_prefix": shared_prefix,
    "token_tree": token_tree,
}


def draw(name: str) -> dict[Path, str]:
    """The files of a diagram."""
    width, height, shapes = DIAGRAMS[name]()
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="$line"/></marker>'
    )
    body = "\n".join(shapes)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}" '
        f'font-family="system-ui, sans-serif" text-anchor="middle" fill="$ink">\n<rect width="100%" height="100%" '
        f'fill="$page"/>\n<defs>{head}</defs>\n{body}\n</svg>\n'
    )
    return {HERE / f"{name}{suffix}.svg": Template(svg).substitute(found) for suffix, found in COLORS.items()}


def main() -> None:
    for name in DIAGRAMS:
        for path, svg in draw(name).items():
            path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
