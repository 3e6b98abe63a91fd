"""The colors of the report, light and dark, and how a stage is told from another without color."""

from dataclasses import dataclass

COLORS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14181d"),
    "page": ("#f6f7f9", "#0c0f13"),
    "ink": ("#1a1f26", "#e8ecf1"),
    "muted": ("#56606c", "#a3adb9"),
    "line": ("#d9dee5", "#313842"),
    "shadow": ("#b9c1cc", "#4b5563"),
    "accent": ("#0b5cad", "#7db8f7"),
    "notice": ("#fff6df", "#2b2413"),
    "notice-edge": ("#d9a01f", "#b98a22"),
    "mark": ("#ffe08a", "#6b5310"),
    "good": ("#0a6b4a", "#4fd0a0"),
    "bad": ("#b02318", "#ff8f85"),
    # Stages, from Okabe and Ito's palette, darkened or lightened to stand out from the paper by 3 : 1.
    "stage-0": ("#6b7481", "#98a3b1"),
    "stage-1": ("#c25a00", "#f2a14e"),
    "stage-2": ("#a3437f", "#e391c1"),
    "stage-3": ("#0070b0", "#5bb6ec"),
    "stage-4": ("#00785a", "#3cc79b"),
    "stage-5": ("#846900", "#dcc04a"),
    "stage-6": ("#5a4ab3", "#a99df6"),
    "stage-7": ("#8a4b2d", "#d69a78"),
    # Heat map: orange below the accuracy threshold, blue above it; the further from it, the stronger.
    "heat-0": ("#e59246", "#94500f"),
    "heat-1": ("#f3bd8b", "#74461c"),
    "heat-2": ("#fbe3cd", "#493323"),
    "heat-3": ("#dbe9f6", "#203748"),
    "heat-4": ("#9cc6e8", "#1f5378"),
    "heat-5": ("#5ba3d6", "#1b6799"),
}
"""Name -> (light, dark). The light ones are all different: figures are drawn with them and then recolored."""

HEAT_STEPS = 6
_STAGE_COLORS = 8
_DASHES: tuple[tuple[int, ...], ...] = ((2, 3), (7, 3), (7, 3, 2, 3), (1, 0), (10, 4))
_SHAPES = ("square", "triangle-up", "diamond", "circle", "cross")


@dataclass(frozen=True, slots=True)
class Style:
    """How one stage is drawn: color, dash pattern and point shape, each of which tells it from the next."""

    index: int

    @property
    def name(self) -> str:
        """The color's name in the style sheet."""
        return f"stage-{self.index % _STAGE_COLORS}"

    @property
    def color(self) -> str:
        """The light color."""
        return COLORS[self.name][0]

    @property
    def dash(self) -> tuple[int, ...]:
        """Lengths of strokes and gaps in pixels."""
        return _DASHES[self.index % len(_DASHES)]

    @property
    def shape(self) -> str:
        """The point's shape, as Vega names it."""
        return _SHAPES[self.index % len(_SHAPES)]


def heat_step(value: float, chance: float, threshold: float) -> int:
    """The step of the heat map's scale: 0-2 from chance up to the accuracy threshold, 3-5 from there up to 1."""
    if value < threshold:
        return min(max(int(3 * (value - chance) / (threshold - chance)), 0), 2)
    return 3 + min(int(3 * (value - threshold) / (1 - threshold)), 2) if threshold < 1 else 5


def style_sheet() -> str:
    """The colors as CSS variables, for light and for dark."""

    def variables(column: int) -> str:
        return "".join(f"--{name}:{pair[column]};" for name, pair in COLORS.items())

    return (
        f":root{{color-scheme:light dark;{variables(0)}}}\n"
        f"@media (prefers-color-scheme: dark){{:root{{{variables(1)}}}}}\n"
    )


def follow_theme(svg: str) -> str:
    """Replaces the light colors of a drawn figure by the variables of the style sheet."""
    for name, (light, _) in COLORS.items():
        svg = svg.replace(f'"{light}"', f'"var(--{name})"')
    return svg
