"""A plug-in that adds one of each to the registries; `example_plugin` in conftest.py installs it."""

from longrm.benchmarks import BENCHMARKS, BenchmarkEntry
from longrm.benchmarks.benchmark import UNREADABLE, Unrateable, load_rows, rateable_responses
from longrm.data.fields import messages_of, name_of
from longrm.evaluation.metrics import METRICS, EvaluationMetric
from longrm.evaluation.rules import RULES, ScoringRule
from longrm.reporting.sections import SECTIONS
from longrm.reporting.tables import Cell, Row, Section, Table
from longrm.reward_models.baselines import BASELINES, BaselineRule
from longrm.serving import wire
from longrm.serving.wire_formats import WIRE_FORMATS
from longrm.training.losses import LOSSES, Loss
from longrm.training.objectives import OBJECTIVES, Objective
from longrm.types import Comparison, text_of
from longrm.worlds import TEXTS, WORLDS
from longrm.worlds.prose.generated_text import GeneratedText
from longrm.worlds.prose.prose_world import ProseWorld
from longrm.worlds.prose.tasks import Case, Point, ProseFact
from longrm.worlds.sentence_world import Claim, SentenceWorld, Unit


def register():
    BASELINES["vowels"] = BaselineRule(vowels)
    BENCHMARKS["riddles"] = BenchmarkEntry(load_riddles, rule="riddles")
    RULES["riddles"] = ScoringRule(
        solved, "The riddlers' own rule", "Solved riddles count one each.", ("by_task_percent",)
    )
    METRICS["beaten"] = BEATEN
    SECTIONS["sizes"] = sizes
    WIRE_FORMATS["grades"] = GRADES
    WORLDS["nicknames"] = SentenceWorld(unit, claim, (FORM,), anywhere=True, subject=SUBJECT)
    WORLDS["hats"] = ProseWorld(hats, "the color of a hat", "NIAH", most_responses=4)
    TEXTS["diary"] = DIARY
    LOSSES["hinge"] = HINGE
    LOSSES["last_token"] = LAST
    OBJECTIVES["endings"] = Endings


# ---- A baseline ----


def vowels(query):
    return [float(sum(letter in "aeiou" for letter in text_of(response))) for response in query.responses]


# ---- A benchmark and its rule ----


def load_riddles(request):
    return load_rows(request, _riddle, {"stale_riddles": "well-known riddles; left out", **UNREADABLE})


def _riddle(row, number, names):
    if row.get("stale"):
        raise Unrateable("stale_riddles")
    given = {"right": row["right"], "wrong": row["wrong"]}
    return Comparison(
        id=f"riddle-{number}",
        group=f"riddle-{number}",
        prompt=messages_of(name_of(row, "riddle"), "riddle", "user"),
        responses=rateable_responses(given, (1, 2)),
        ranks=(1, 2),
        metadata={"task": "riddles"},
    )


def solved(records, scale):
    right = sum(record.scores[0] > record.scores[1] for record in records)
    percent = 100 * right / len(records)
    return {"overall_percent": percent, "by_task_percent": {"short": percent}, "left_out": 0}


# ---- A metric ----


def beaten(values, ranks):
    """How many responses gold ranks below those judged best."""
    top = [rank for value, rank in zip(values, ranks, strict=True) if value == max(values)]
    worse = [sum(other > rank for other in ranks) for rank in top]
    return sum(worse) / len(worse)


BEATEN = EvaluationMetric(
    "beaten",
    "responses beaten",
    "responses that gold ranks below the one judged best",
    lambda table: table.per_comparison(beaten),
    span=(0.0, 7.0),
    for_pairs=True,
    in_results=True,
)


# ---- A section of the report ----


def sizes(data):
    """How many groups each model judged."""
    rows = tuple(Row(s.label, (Cell(str(s.summary.counts.groups)),), s.style) for s in data.models)
    table = Table("Groups", ("model", "groups"), rows)
    return Section("Sizes", tables=(table,), terms={"groups": "Each group shares a context."})


# ---- A wire format ----


class GradeBody(wire.ClientBody):
    """A question and its answers."""

    question: str
    answers: list[str]


GRADES = (
    wire.Route(
        "/grade",
        GradeBody,
        lambda body: [wire.ScoreRequest(body.question, body.answers)],
        lambda body, results, model: {"grades": wire.all_scores(results), "by": model},
        {"question": "Who?", "answers": ["They.", "We all."]},
    ),
)


# ---- A world of sentences, a world in prose, a kind of text ----

FORM = "Sailors nickname {entity} after some {value}."
SUBJECT = "the nephew of {}"


def unit(holders, rng):
    return Unit((FORM.format(entity=holders[0].entity, value=holders[0].value),), holders)


def claim(unit, rng):
    return Claim(SUBJECT.format(unit.holders[0].entity), unit.holders[0].value, (0,))


COLORS = [
    "red",
    "blue",
    "green",
    "gray",
    "brown",
    "black",
    "white",
    "pink",
    "yellow",
    "orange",
    "purple",
    "silver",
]


def hats(names, size):
    points = []
    for color in names.values(COLORS, size):
        person = names.person()
        answer = f"{person} wears a {{}} hat."
        points.append(
            Point((ProseFact(answer.format(color)),), f"Which hat does {person} wear?", answer, color)
        )
    return Case(tuple(points), "Name {number} people and their hats.")


DIARY = GeneratedText(
    title="diary",
    about="days at sea",
    head="{date}: ",
    themes={
        title: tuple(
            f"{title} [rose|fell] {time} near the {{coast}}." for time in ("early", "late", "slowly")
        )
        for title in ("Wind", "Fog", "Waves")
    },
    slots={"coast": tuple(f"{number}th cape" for number in range(4, 900))},
    closings=("Calm.", "Nothing more."),
)


# ---- Losses and an objective ----


def hinge(logprobs, counts, *, beta, reference):
    import torch

    ratios = torch.stack([own.sum() for own in logprobs]) - torch.tensor(reference)
    leads = [own[0] - own[1:].mean() for own in ratios.split(counts)]
    loss = (1.0 - beta * torch.stack(leads)).clamp(min=0.0).mean()
    return loss, {"lead": torch.stack(leads).mean().item()}


def last_token(logprobs):
    return -logprobs.mean(), {"last": logprobs.mean().item()}


HINGE = Loss(
    "preference",
    hinge,
    "Hinge",
    "one minus the lead of the chosen response",
    {"beta": 0.7},
    mean_over="comparisons",
    needs_reference=True,
)
LAST = Loss("endings", last_token, "last token", "the likelihood of the last token", {}, "comparisons")


class Endings(Objective):
    trains = "language_model"
    reads = "demonstration"
    help = "Imitate how completions end."
    description = "imitation of the last token of completions"

    def loss(self, model, micro):
        import torch

        return self.settings.loss.function(torch.stack([own[-1] for own in micro.response_logprobs(model)]))
