import json
import re

import pytest

from longrm.types import message_text

from .prose_tokenizer import prose_tokenizer

ONE_FACT_ASKED = (
    "single-fact",
    "two-hops",
    "latest-update",
    "counting",
    "who-said-it",
    "contradiction",
    "instruction",
    "citation",
    "many-facts",
)
BALANCED = ("exchange", "joined-facts", "dated-update")
"""The default tasks of a probe."""
PROSE = (*ONE_FACT_ASKED, *BALANCED, "checklist", "tool-call")
COUNTS = {"two": 2, "three": 3, "four": 4}


class ProseView:
    """What a comparison says, read by regular expressions that share nothing with the generator."""

    def __init__(self, comparison):
        self.comparison = comparison
        self.text = message_text(comparison.prompt[0])
        self.context = self.cut(comparison.context[0])
        self.question = self.cut(comparison.question)
        self.evidence = [self.cut(span) for span in comparison.evidence]
        self.responses = [message_text(response[0]) for response in comparison.responses]

    def cut(self, span):
        return self.text[span.start : span.end]

    def claims(self, response):
        """The sentences of a response; an instruction's line and what obeys it, or a quotation, are one claim."""
        if self.comparison.metadata["task"] == "tool-call":
            return [response]
        if self.comparison.metadata["task"] == "instruction":
            return re.findall(r"[^.]+\. [^.]+\.", response)
        return re.findall(r"[^.]+\.", response)

    def right(self, response):
        """How many claims of a response the context bears out."""
        bears_out = getattr(self, f"_{self.comparison.metadata['task'].replace('-', '_')}")
        return sum(bears_out(claim.strip()) for claim in self.claims(response))

    def _states(self, claim):
        return claim[1:-1] in self.context  # its first letter may be a small one there

    _single_fact = _many_facts = _checklist = _who_said_it = _contradiction = _states

    def _two_hops(self, claim):
        noun, person, said = re.fullmatch(r"The (\w+) that (\w+ \w+) looks after (.*)", claim).groups()
        owned = re.findall(rf"{person} looks after the (\w+ {noun})", self.context)
        return len(owned) == 1 and f"he {owned[0]} {said}" in self.context

    _joined_facts = _two_hops

    def _exchange(self, claim):
        stated = re.fullmatch(r"The (\w+ (\w+)) (gave|sent) the (\w+ \2) (\w+)\.", claim)
        giver, _, gave, taker, value = stated.groups()
        one, other = f"the {giver}", f"the {taker}"
        got = {"gave": "got", "sent": "received"}[gave]
        said = [  # by the giver, then by the taker
            f"{one} {gave} {other} {value} and",
            rf"{one} {got} \w+ from {other} and {gave} {value} in return",
            rf"in return for \w+, {one} {gave} {other} {value}\b",
            rf"in return for \w+, {one} {gave} {value} to {other}",
            rf"in return for {value}, {one} {got} \w+ from {other}",
            f"{value} went from {one} to {other} in return",
            rf"{other} {gave} {one} \w+ and {got} {value} in return",
            f"{other} {got} {value} from {one} and",
            rf"in return for {value}, {other} {gave} {one} \w+",
            rf"in return for {value}, {other} {gave} \w+ to {one}",
            rf"in return for \w+, {other} {got} {value} from {one}",
            rf"\w+ went from {other} to {one} in return for {value}\b",
        ]
        return bool(re.search("|".join(said), self.context, re.IGNORECASE))

    def _dated_update(self, claim):
        thing, city = re.fullmatch(r"The (\w+ \w+) was last moved to (\w+)\.", claim).groups()
        moves = re.findall(
            rf"(?:[Ii]n (\d+), )?[Tt]he {thing} was moved (?:in (\d+) )?to (\w+)(?: in (\d+))?\.",
            self.context,
        )
        return (
            bool(moves) and max((max(one, two, three), place) for one, two, place, three in moves)[1] == city
        )

    def _latest_update(self, claim):
        thing, city = re.fullmatch(r"The (\w+ \w+) was moved last to (\w+)\.", claim).groups()
        return re.findall(rf"he {thing} was moved to (\w+)\.", self.context)[-1:] == [city]

    def _counting(self, claim):
        subject, verb, count = re.match(r"The (\w+ \w+) (\w+) .*?(two|three|four) ", claim).groups()
        return len(re.findall(rf"he {subject} {verb} ", self.context)) == COUNTS[count]

    def _instruction(self, claim):
        subject, word = re.fullmatch(r"The (\w+ \w+) is mentioned in the text\. .* (\w+)\.", claim).groups()
        rules = re.findall(rf"about the {subject} must [^.]*? (\w+)\.", self.context)
        return rules == [word]

    def _citation(self, claim):
        subject, entry = re.fullmatch(
            r"The text says something about the (\w+ \w+) in entry (\w+)\.", claim
        ).groups()
        return re.findall(rf"\[(\w+)\]\W+(?:\w+: )?The {subject}", self.context) == [entry]

    def _tool_call(self, claim):
        return self.call_errors(claim) == []

    def call_errors(self, response):
        """The types of error of tool calls, by the documentation and the jobs that the context states."""
        plural, owner = re.fullmatch(r"Question: Book all (\w+) of the (.*), with .*", self.question).groups()
        job = {"deliveries": "delivery", "pickups": "pickup"}[plural]
        documented = re.findall(rf"{owner} books (.*?), both called with ([^.]*)\.", self.context)
        if len(documented) != 1:
            return ["undocumented"]
        tools = dict(re.findall(r"(\w+) with (\w+)", documented[0][0]))
        types = dict(re.findall(r"(\w+) \((\w+)\)", documented[0][1]))
        jobs = re.findall(rf"{owner} has a {job} of (\d) crates in (\w+)\.", self.context)
        calls, errors = json.loads(response), []
        if len(calls) != len(jobs):
            errors.append("Incorrect number of function calls")
        for call in calls:
            given = call["arguments"]
            if call["name"] != tools[plural]:
                errors.append("Incorrect function name")
            errors += ["Missing required parameter" for name in types if name not in given]
            errors += ["Unexpected parameter" for name in given if name not in types]
            known = {name: value for name, value in given.items() if name in types}
            errors += [
                "Parameter value type error"
                for name, value in known.items()
                if type(value) is not {"string": str, "integer": int}[types[name]]
            ]
            stated = [{"crates": crates, "city": city} for crates, city in jobs]
            if len(calls) == 1 and not any(
                all(str(value) == one[name] for name, value in known.items()) for one in stated
            ):
                errors.append("Parameter value error")
        return errors


@pytest.fixture(scope="session")
def prose_view():
    return ProseView


@pytest.fixture(scope="session")
def prose_bpe():
    return prose_tokenizer()


@pytest.fixture(scope="session")
def prose_merging():
    """Its tokens reach across words, so that the counts of parts do not add up."""
    return prose_tokenizer(across_words=True)


@pytest.fixture
def documents(tmp_path):
    """A folder of documents of three kinds, with about 6,000 words."""
    place = tmp_path / "documents"
    (place / "deeper").mkdir(parents=True)
    paragraphs = [
        f"Paragraph {number} is about topic {number * 7}. It mentions Oslo, a horse and the Larkin mill, "
        + " and so on" * (number % 9)
        + "."
        for number in range(300)
    ]
    (place / "one.txt").write_text("\n\n".join(paragraphs[:100]), encoding="utf-8")
    (place / "deeper" / "two.md").write_text("\n\n".join(paragraphs[100:200]), encoding="utf-8")
    rows = [f'{{"body": "{paragraph}"}}' for paragraph in paragraphs[200:]]
    (place / "three.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return place
