"""What all formats have in common, tested on the pairwise one."""

import time

import pytest

from longrm.judging import load_format
from longrm.judging.answers import opened_thought

A, B, TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)


@pytest.fixture
def parsed(query):
    """The values that the pairwise format parses from a text."""

    def parse(text):
        verdict = load_format("pairwise").parse(text, query("Marlow.", "Tamsin."))
        return verdict and verdict.values

    return parse


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("At first [[A]] seems right.\nBut it made it up.\n[[B]]", B),
        ("It is \\boxed{[[A]]}", A),
        ("Final verdict: \\[\\[B\\]\\]", B),
        ("［［Ａ］］", A),
        ("[[A]]\n\nHope this helps!", A),
        ("| Verdict | [[A]] |", A),
        ("[[A]]<|im_end|>", A),
        ("No verdict at all.", None),
        ("Response A is better, I think.", None),
        ("[A] says so and [B] does not, as in [[Marlow]].", None),
        ("I must end with [[A]], [[B]] or [[C]]", None),
        ("[[D]]", None),
        ("[[A>A]]", None),
        ("At first [[A]] seems right.\n[[B > > A]]", None),
        ("[See [[B]]]", B),
    ],
)
def test_the_last_verdict_in_brackets_counts(parsed, text, verdict):
    assert parsed(text) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<think>Surely [[A]].</think>\n[[B]]", B),
        ("<think>Surely [[A]].</think>\nI cannot say.", None),
        ("Surely [[A]].\n</think>\n[[B]]", B),
        ("<thinking>Surely [[A]].", None),
        ("<think>\n\n</think>\n\n[[A]]", A),
        ("<think>One.</think>[[A]]<think>Two: [[B]]</think>\n[[B]]", B),
        ("[THINK]Surely [[A]].[/THINK][[B]]", B),
        ("[thinking aloud] [thinking] Response B names the key. [[B]]", B),
        ('Response A leaks "<think>" into its text.\n[[B]]', B),
        ("<|channel|>analysis<|message|>[[A]].<|end|><|start|>assistant<|channel|>final<|message|>[[B]]", B),
        ("<|channel|>analysis<|message|>Surely [[A]].<|end|>", None),
        ("<|begin_of_thought|>Surely [[A]].<|end_of_thought|>\n[[B]]", B),
        ("[[B]], because response A leaks `</think>` into its text.", B),
    ],
)
def test_thoughts_are_removed(parsed, text, verdict):
    assert parsed(text) == verdict


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<think></think> Who? <thinking>", "<thinking>"),
        ("[INST]Who?[/INST][THINK]", "[THINK]"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|start|>assistant<|channel|>final<|message|>", ""),
        ("What does <think> mean?<|im_end|>", ""),
        ("It writes '<think>'", ""),
        ("<|im_start|>assistant\n", ""),
    ],
)
def test_a_thought_that_the_prompt_opens_is_found(prompt, opened):
    assert opened_thought(prompt) == opened


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("[[A]]\n\n> [[B]]", A),
        ("[[A]]\n\n```\n[[B]]\n```", A),
        ("[[A]]\nIt ends with `[[B]]` itself.", A),
        ('[[A]]\nIt ends with "[[B]]" itself.', A),
        ("[[A]]\nIt ends with “so take [[B]]!” itself.", A),
        ("It ends with `[[B]]`.\nI take neither.", None),
    ],
)
def test_a_quotation_is_not_a_verdict(parsed, text, verdict):
    assert parsed(text) == verdict


@pytest.mark.parametrize(
    "text",
    [
        '"[[B]]"',
        'Therefore, my final verdict is "[[B>A]]".',
        "> [[B]]",
        '{"verdict": "B"}',
        '```json\n{\n  "reason": "A invents.",\n  "final_verdict": "Response B"\n}\n```',
        "\\boxed{B}",
        "<verdict>B</verdict>",
        "Final verdict: Response B",
        "**My verdict is: B**",
        "Response B is better.",
        "Overall, I would prefer Response B.",
        "Assistant B wins!",
        '{"scores": {"A": 4, "B": 7}, "why": "f(x) = {x}", "verdict": "B"}',
        "## Verdict\n\n**B**",
        "【【B】】",
        "最终结论：【【B】】",
        "Verdict: 【B】",
    ],
)
def test_other_forms_of_real_judges_are_parsed(parsed, text):
    assert parsed(f"So it is.\n{text}") == B
    assert parsed(f"{text}\n[[A]]") == A, "the asked-for form comes first"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Response A", A),
        ("**[A]**", A),
        ("It is a tie.", TIE),
        ("Because of that.\nB", None),  # could be an answer to the question itself
        ("So x is \\boxed{A}", None),
        ("Verdict: B is rather good in parts", None),
        ('{"verdict": "A", "winner": "B"}', None),
        ('{"verdict": ["A"]}', None),
    ],
)
def test_a_whole_answer_is_a_verdict_and_a_part_need_not_be(parsed, text, verdict):
    assert parsed(text) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"reason": "A invents it.", "winner": "B"', B),
        ('{"winner": "B", "reason": "A, who inv', B),
        ('{"winner": "B", "reason": "A says {\\"x\\": 1}, b', B),
        ('```json\n{\n  "scores": {"A": 4, "B": 7},\n  "winner": "Response B",\n', B),
        ('{"notes": ["x", {"y": 1}], "winner": "B", "more": [1, 2', B),
        ('{"reason": "A invents it.", "winner": "B', None),
        ('{"reason": "A invents it.", "winner":', None),
        ('{"reason": "I could write \\"winner\\": \\"B\\"', None),
        ('{"reason": "x", "scores": {"winner": "B"', None),
        ('{"reason": "x", "scores": {"winner": "B", "y', None),
        ('{"winner": "B", "verdict": "A", "reason": "b', None),
        ('{"winner": "B", "reason": "x"} is not what I think.', None),
        ('{"winner": "B"} or {"winner": "A"', None),
        ('> {"reason": "x", "winner": "B"', None),
        ('Answer in the form {"reason": "x", "winner": "B"', None),
        ('{"winner": "B" if B wins', None),
    ],
)
def test_the_verdict_in_cut_json_counts_if_it_is_complete(parsed, text, verdict):
    assert parsed(f"So it is.\n{text}") == verdict


def test_a_number_at_the_cut_may_be_a_part(query):
    pointwise, asked = load_format("pointwise"), query("Marlow.")
    assert pointwise.parse('{"reason": "x", "score": 1', asked) is None
    assert pointwise.parse('{"reason": "x", "score": 1, "mo', asked).values == (1.0,)


@pytest.mark.parametrize(
    "text",
    [
        "B]]]",
        "B]]",
        "[[B",
        "[[B]",
        "[B]]",
        "B.]",
        "Verdict: B]]]",
        "Verdict: [[B",
        '{"verdict": "B]]"}',
        "[[B > A",
    ],
)
def test_brackets_around_a_verdict_are_closed(parsed, text):
    assert parsed(text) is None
    for complete in ("B", "[B]", "[[B]]", "[B.]", "Verdict: [[B]]", '{"verdict": "[[B]]"}', "[[B > A]]"):
        assert parsed(complete) == B


@pytest.mark.full
@pytest.mark.timeout(20)  # a pattern that backtracks through these takes minutes
@pytest.mark.parametrize(
    "piece",
    [
        "\n", "*", "`", "[[A ", "[[A]] ", "[[A]]\n[[B]]\n", "verdict:\n", "so, ", "```\n", "<", "&", " ", "“", '"',
        "-", "$", "{", '{"a":', "\\boxed{", '"<think>" ', "Verdict: A\n", "Winner: A — ", "Response A's :", "\\text{",
        "A > ", "[", "]", "#", "Verdict: [", '\n{"a": 1,', '\n{"', '\n["A",', "【", "[1] > ", "  x ",
        '\n{"a": [', '\\"',
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["", '\nVerdict: "[[B]]"', '"}'])
def test_parsing_takes_time_in_proportion_to_the_text(parsed, piece, ending):
    def seconds(count):
        text = f"x{piece * count}{ending}"
        spent = []
        for _ in range(3):
            start = time.process_time()
            parsed(text)
            spent.append(time.process_time() - start)
        return min(spent)

    # Quadratic time would be 100 times as long.
    assert seconds(10_000) < 40 * seconds(1_000) + 0.01
