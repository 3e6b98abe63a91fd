"""`longrm synthesize embed`: short comparisons among other conversations, with the same gold."""

import re
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from longrm.data import read, write
from longrm.data.chunking import approximate_tokens
from longrm.errors import ConfigError, DataError
from longrm.reward_models.baselines import BASELINES, Baseline
from longrm.rng import Rng
from longrm.synthesis.recipes import embed
from longrm.synthesis.recipes.embed import INSTRUCTION, RECIPE, senders, synthesize
from longrm.types import Comparison, margin, message_text, query_of, text_of
from tests.worlds.trained_bpe import trained_bpe

WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "inlet",
    "jetty",
    "knoll",
    "larch",
]
BOTH = ["preference", "relevance"]


def message(role, text):
    return {"role": role, "content": text}


def comparison(number, pair=0):
    """A conversation of 8 to 40 words, some of several turns, with a pair whose chosen response is longer."""
    rng = Rng("conversation", number)
    text = f"Question {number}: " + " ".join(rng.choice(WORDS) for _ in range(8 + rng.below(32))) + "?"
    prompt = (message("user", text),)
    if number % 4 == 0:
        prompt = (message("user", "First."), message("assistant", f"Reply {number}."), *prompt)
    good, bad = f"The answer to {number}, at length {pair}.", f"No {number}."
    responses = tuple((message("assistant", one),) for one in (good, bad))
    return Comparison(
        f"c{number}-{pair}", f"g{number}", prompt, responses, (1, 2), {"task": "talk", "source": "forum"}
    )


@pytest.fixture(scope="module")
def data():
    """60 conversations, half of them with two pairs."""
    return [comparison(number, pair) for number in range(60) for pair in range(1 + number % 2)]


@pytest.fixture(scope="module")
def pairs(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("embed") / "pairs.jsonl"
    write(path, data)
    return path


def run(out, source, **settings):
    return synthesize(RECIPE.resolve(None, {"source": f"file:{source}", **settings}), out)


def rows_of(out):
    return [row.comparison for row in read(out)]


def span_text(row, span):
    return message_text(row.prompt[span.message])[span.start : span.end]


def items_of(row):
    """The items of a context by their senders, read from the text."""
    parts = re.split(r"(?:^|\n\n)(From|Document): (.+)\n", span_text(row, row.context[0]))
    assert parts[0] == ""
    found = [
        (kind, name, text) for kind, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    ]
    assert len({(kind, name) for kind, name, _ in found if kind == "From"}) == sum(
        one[0] == "From" for one in found
    )
    return found


def text_in_inbox(one):
    if len(one.prompt) == 1:
        return message_text(one.prompt[0])
    return "\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in one.prompt)


@pytest.fixture(scope="module")
def embedded(pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("embed") / "out"
    manifest = run(out, pairs, lengths=[96, 400], pairs=BOTH, relevance_share=1.0)
    return manifest, rows_of(out)


def test_the_pair_stays_and_its_conversation_is_among_others_of_the_file(embedded, data):
    known = {one.id: one for one in data}
    conversations = {text_in_inbox(one): one.group for one in data}
    rows = [row for row in embedded[1] if row.metadata["task"] == "preference"]
    assert Counter(row.metadata["embedded"] for row in rows) == dict.fromkeys(
        known, 2
    )  # once for each length
    for row in rows:
        one = known[row.metadata["embedded"]]
        assert (row.responses, row.ranks, row.group) == (one.responses, one.ranks, one.group)
        assert row.metadata["subtype"], row.metadata["source"] == ("talk", "forum")
        items = items_of(row)
        assert row.metadata["items"] == len(items) > 1
        sender = row.metadata["sender"]
        assert span_text(row, row.question) == INSTRUCTION.format(sender)
        assert [text for _, name, text in items if name == sender] == [text_in_inbox(one)]
        assert span_text(row, row.evidence[0]) == f"From: {sender}\n{text_in_inbox(one)}"
        assert len({conversations[text] for _, _, text in items}) == len(
            items
        )  # each once, all from the file
        assert (
            message_text(row.prompt[0])
            == f"{span_text(row, row.context[0])}\n\n{span_text(row, row.question)}"
        )


def test_prompts_fill_their_length_and_depths_are_those_of_the_items(embedded):
    depths = defaultdict(list)
    for row in embedded[1]:
        tokens = approximate_tokens(message_text(row.prompt[0]))
        assert row.metadata["tokens"] == tokens
        assert 0.9 * row.metadata["length"] <= tokens <= row.metadata["length"]
        places = [name for _, name, _ in items_of(row)]
        assert (row.metadata["depth"] == 0) == (places[0] == row.metadata["sender"])
        assert (row.metadata["depth"] == 1) == (places[-1] == row.metadata["sender"])
        depths[row.metadata["length"]].append(row.metadata["depth"])
    assert {length: len(some) for length, some in depths.items()} == {96: 270, 400: 270}
    thirds = Counter(min(2, int(3 * depth)) for depth in depths[400])
    assert min(thirds.values()) > 60  # of 90 expected


def test_relevance_is_decided_by_the_prompt_alone(embedded, data):
    best = defaultdict(set)
    for one in data:
        best[text_in_inbox(one)].add(text_of(one.responses[0]))
    rows = [row for row in embedded[1] if row.metadata["task"] == "relevance"]
    twins = defaultdict(list)
    for row in rows:
        twins[row.id.rpartition(":")[0]].append(row)
    assert len(rows) == 2 * len(twins) == 360
    for one, other in twins.values():
        assert one.responses == other.responses
        assert one.ranks == other.ranks[::-1]
        assert one.group == other.group
        assert span_text(one, one.context[0]) == span_text(other, other.context[0])
        assert one.metadata["sender"] != other.metadata["sender"]

    def accuracy(rows, scores):
        leads = [margin(scores(row), row.ranks) for row in rows]
        return sum(1.0 if lead > 0 else 0.5 if lead == 0 else 0.0 for lead in leads) / len(rows)

    # A reader who finds the sender named at the end is always right; one who finds another sender is always wrong.
    def finds(row, sender):
        conversation = next(text for _, name, text in items_of(row) if name == sender)
        return [float(text_of(response) in best[conversation]) for response in row.responses]

    other_sender = {
        id(row): pair[1 - at].metadata["sender"] for pair in twins.values() for at, row in enumerate(pair)
    }
    assert accuracy(rows, lambda row: finds(row, row.metadata["sender"])) == 1.0
    assert accuracy(rows, lambda row: finds(row, other_sender[id(row)])) == 0.0

    def baseline(name):
        return lambda row: Baseline(name).judge([query_of(row, (0, 1))])[0].scores

    reads_question = {"bm25", "nearest", "question-ngrams"}  # these find the sender's name, as a reader does
    for name in set(BASELINES) - {"random"}:  # which hashes the row's id
        assert (accuracy(rows, baseline(name)) == 0.5) == (name not in reads_question), name
    # The same rule on the pairs of the input, whose chosen responses are the longer ones.
    preferences = [row for row in embedded[1] if row.metadata["task"] == "preference"]
    assert accuracy(preferences, baseline("longest")) == 1.0


def test_comparisons_that_cannot_be_embedded_are_skipped_and_counted(data, tmp_path):
    long = replace(data[0], id="long", group="long", prompt=(message("user", "word " * 90),))
    tied = replace(data[2], id="tied", ranks=(1, 1))
    unknown = replace(data[3], id="unknown", ranks=None)
    with_tool = replace(data[4], id="tool", tools=({"type": "function", "function": {"name": "a"}},))
    path = tmp_path / "data.jsonl"
    write(path, [*data, long, tied, unknown, with_tool])
    counts = run(tmp_path / "out", path, lengths=[96])["counts"]
    dropped = {"has_tools": 1, "order_unknown": 1, "tied": 1}
    assert counts["steps"] == {
        "comparisons": {"in": 94, "kept": 90, "dropped": {**dropped, "too_long": 1}},
        "contexts": {"in": 90, "kept": 90, "dropped": {}},
    }
    assert not any("word word" in text_of(row.prompt) for row in rows_of(tmp_path / "out"))
    counts = run(tmp_path / "short", path, lengths=[96], max_prompt=80)["counts"]
    assert counts["steps"]["comparisons"]["dropped"] == {**dropped, "prompt_too_long": 1}
    # A file that cannot fill the length has no rows of it.
    counts = run(tmp_path / "far", path, lengths=[20_000], contexts=2)["counts"]
    assert counts["steps"]["contexts"]["dropped"] == {"cannot_fill_20000_tokens": 2}
    judgment = replace(data[0], role="judgment")
    write(path, [judgment])
    with pytest.raises(DataError, match="c0-0"):
        run(tmp_path / "judgment", path)
    with pytest.raises(ConfigError, match="lengths"):
        run(tmp_path / "lengths", path, lengths=[96, 96])


def test_all_lengths_begin_with_the_same_comparisons_and_repeat_them_among_others(pairs, data, tmp_path):
    steps = run(tmp_path / "some", pairs, lengths=[96, 200], contexts=20)["counts"]["steps"]
    undrawn = 2 * len(data) - 40  # of two lengths
    assert steps["comparisons"] == {"in": 2 * len(data), "kept": 40, "dropped": {"not_drawn": undrawn}}
    assert steps["contexts"]["in"] == 40
    by_length = defaultdict(list)
    for row in rows_of(tmp_path / "some"):
        by_length[row.metadata["length"]].append(row.metadata["embedded"])
    assert by_length[96] == by_length[200]
    assert len({*by_length[96]}) == 20
    steps = run(tmp_path / "again", pairs, lengths=[96], contexts=2 * len(data))["counts"]["steps"]
    assert (steps["comparisons"]["in"], steps["contexts"]["in"]) == (len(data), 2 * len(data))
    contexts = defaultdict(set)
    for row in rows_of(tmp_path / "again"):
        contexts[row.metadata["embedded"]].add(span_text(row, row.context[0]))
    assert {len(some) for some in contexts.values()} == {2}
    assert len(contexts) == len(data)


def test_answers_are_shown_in_half_of_the_padding(pairs, data, tmp_path):
    run(tmp_path / "out", pairs, lengths=[400], pairs=BOTH, answered=0.5)
    answers = {text_of(one.responses[0]) for one in data}
    items, shown = 0, 0
    for row in rows_of(tmp_path / "out"):
        assert not any(answer in span_text(row, row.evidence[0]) for answer in answers)
        for _, _, text in items_of(row):
            items += 1
            shown += any(text.endswith(f"Assistant: {answer}") for answer in answers)
    assert 0.3 < shown / items < 0.5  # half of those without a request


def test_a_tokenizer_that_merges_across_items_is_measured(pairs, monkeypatch, tmp_path):
    texts = [" ".join(WORDS), *(text_of(row.prompt) for row in [comparison(n) for n in range(60)])]
    tokenizer = trained_bpe(texts, 400, across_words=True)
    monkeypatch.setattr(embed, "load_tokenizer", lambda name: tokenizer)
    counts = run(tmp_path / "out", pairs, lengths=[200], pairs=BOTH, tokenizer="mine")["counts"]
    assert counts["steps"]["contexts"]["kept"] == 90
    for row in rows_of(tmp_path / "out"):
        assert row.metadata["tokens"] == len(tokenizer.prompt_ids(row.prompt))
        assert 180 <= row.metadata["tokens"] <= 200


def test_senders_never_repeat():
    names = senders(Rng(1))
    drawn = [next(names) for _ in range(30_000)]
    assert len({*drawn}) == len(drawn)
    assert len({name.split()[0] for name in drawn[:60]}) == 60
