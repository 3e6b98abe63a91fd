import json
import re

import pandas as pd
import pytest

from longrm.errors import ConfigError, DataError
from longrm.worlds import WorldPlan, generate, group
from longrm.worlds.prose.haystack import read_haystack
from longrm.worlds.prose.word_lists import ANIMALS, CITIES

from .conftest import ONE_FACT_ASKED


def plan(documents, world="single-fact", length=1500, **more):
    return WorldPlan(world, length, haystack=str(documents), haystack_column="body", **more)


@pytest.mark.parametrize("world", ONE_FACT_ASKED)
def test_facts_between_the_paragraphs_of_documents_decide(prose_bpe, prose_view, documents, world):
    whole = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(documents.rglob("*.*")))
    for row in generate(plan(documents, world, per_group=2), 8, prose_bpe):
        seen = prose_view(row)
        assert [seen.right(response) for response in seen.responses] == [2 - rank for rank in row.ranks]
        assert row.metadata["text"] == "haystack"
        total = prose_bpe.count(seen.text)
        longest = max(
            prose_bpe.count(prose_view(one).text)
            for one in group(plan(documents, world, per_group=2), int(row.group[-6:]), prose_bpe)
        )
        assert total <= longest
        assert 0 <= 1500 - longest < 16  # less than a word
        paragraphs = [re.sub(r"^\[\w+\] ", "", part) for part in seen.context.split("\n\n")]
        own = [part for part in paragraphs if part in whole]
        assert len(own) > len(paragraphs) / 4
        assert {*seen.evidence} <= {*paragraphs} - {*own}


def test_no_name_or_value_that_the_documents_have_is_used(prose_bpe, prose_view, documents):
    rows = list(generate(plan(documents, per_group=4), 200, prose_bpe))
    said = " ".join(response for row in rows for response in prose_view(row).responses)
    assert not {"Larkin", "Oslo", "horse"} & {*re.findall(r"\w+", said)}
    assert {*ANIMALS, *CITIES} & {*re.findall(r"\w+", said)}


def test_a_haystack_that_cannot_be_read_is_refused(tmp_path, documents):
    with pytest.raises(DataError, match="three.jsonl, line 1, field 'text'"):
        WorldPlan("single-fact", 500, haystack=str(documents))


def test_documents_of_a_table_are_those_of_json_lines(tmp_path):
    texts = ['The mill, by the river, was "old".\n\nNobody went there.', "[1] A list of barns."]
    for name in ("rows", "table"):
        (tmp_path / name).mkdir()
    lines = [json.dumps({"body": text, "n": 1}) + "\n" for text in texts]
    (tmp_path / "rows" / "a.jsonl").write_text("".join(lines))
    pd.DataFrame({"n": [1, 1], "body": texts}).to_csv(tmp_path / "table" / "a.csv", index=False)
    rows, table = (read_haystack(str(tmp_path / name), "body") for name in ("rows", "table"))
    assert table.documents == rows.documents
    assert len(table.documents) == 2
    assert read_haystack(str(tmp_path / "table" / "a.csv"), "body").digest == rows.digest
    # Negative control: next to texts a table is about them, and is not a document.
    (tmp_path / "rows" / "questions.csv").write_text("file,question,answer\na.jsonl,Who?,Nobody\n")
    read_haystack.cache_clear()
    assert read_haystack(str(tmp_path / "rows"), "body").digest == rows.digest


def test_documents_whose_words_are_all_values_are_refused(prose_bpe, tmp_path):
    path = tmp_path / "cities.txt"
    path.write_text("\n\n".join(f"{city} is a city, and {city} is large." for city in CITIES))
    with pytest.raises(ConfigError):
        list(generate(WorldPlan("latest-update", 300, haystack=str(path)), 1, prose_bpe))
