"""Every wire format against bodies written by hand: what is asked, and the numbers that come back."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longrm.data.joining import encode
from longrm.serving.wire_formats import WIRE_FORMATS
from longrm.types import as_messages
from tests.serving.test_longrm_scores import TOLERANCE, ask

PROMPT, GOOD, BAD = "w1 w2 w3?", "w4 w5.", "w6 w7 w8."
USER = {"role": "user", "content": PROMPT}


def assistant(text):
    return {"role": "assistant", "content": text}


def rendered(*responses):
    return [
        f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
        for text in responses
    ]


@pytest.fixture(scope="module")
def scores(plain):
    """The model's scores of both responses."""
    found = plain.score(PROMPT, [GOOD, BAD])
    assert abs(found[0] - found[1]) > 100 * TOLERANCE
    return [pytest.approx(score, abs=TOLERANCE) for score in found]


@pytest.fixture(scope="module")
def ids(plain):
    item = encode(
        plain.tokenizer, as_messages(PROMPT, "user"), [as_messages(text, "assistant") for text in (GOOD, BAD)]
    )
    return [[*item.prompt, *own] for own in item.responses]


def test_verl_asks_classify_with_a_rendered_text(client, scores, ids):
    sent = {"model": "any", "input": rendered(GOOD)[0], "use_activation": False}
    answer = ask(client, sent, "/classify")
    assert answer["data"][-1]["probs"][-1] == scores[0]
    assert {key: value for key, value in answer["data"][0].items() if key != "probs"} == {
        "index": 0,
        "label": "LABEL_0",
        "num_classes": 1,
    }
    assert answer["object"] == "list"
    assert answer["id"].startswith("classify-")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == len(ids[0])


@pytest.mark.parametrize("form", ["texts", "ids", "messages"])
def test_vllm_takes_texts_ids_and_messages(client, scores, ids, form):
    if form == "messages":
        answers = [ask(client, {"messages": [USER, assistant(text)]}, "/classify") for text in (GOOD, BAD)]
        assert [answer["data"][0]["probs"][0] for answer in answers] == scores
        return
    answer = ask(client, {"input": rendered(GOOD, BAD) if form == "texts" else ids}, "/classify")
    assert [one["probs"] for one in answer["data"]] == [[score] for score in scores]
    pooled = ask(client, {"input": ids[1], "task": "classify"}, "/pooling")
    assert pooled["data"] == [{"index": 0, "object": "pooling", "data": [scores[1]]}]


def test_vllm_ranks_responses_to_a_prompt(client, scores):
    sent = {"model": "any", "query": PROMPT, "documents": [GOOD, BAD]}
    for path in ("/rerank", "/v1/rerank"):
        answer = ask(client, sent, path)
        found = {one["index"]: one for one in answer["results"]}
        assert [found[index]["relevance_score"] for index in (0, 1)] == scores
        assert found[1]["document"] == {"text": BAD}
        values = [one["relevance_score"] for one in answer["results"]]
        assert values == sorted(values, reverse=True)
    assert len(ask(client, sent | {"top_n": 1}, "/rerank")["results"]) == 1


def test_use_activation_is_refused(client):
    response = client.post("/classify", json={"input": rendered(GOOD), "use_activation": True})
    assert response.status_code == 400


@pytest.mark.parametrize("path", ["/classify", "/v1/scores"])
def test_a_template_in_a_request_is_refused(client, path):
    bodies = {
        "/classify": {"messages": [USER, assistant(GOOD)]},
        "/v1/scores": {"prompt": PROMPT, "responses": [GOOD, BAD]},
    }
    assert client.post(path, json=bodies[path]).status_code == 200
    refused = client.post(path, json=bodies[path] | {"chat_template": "{{ messages }}"})
    assert refused.status_code in (400, 422)
    assert "chat_template" in refused.text


def test_sglang_takes_texts_and_ids(client, scores, ids):
    answer = ask(client, {"text": rendered(GOOD, BAD)}, "/classify")
    assert [one["embedding"] for one in answer] == [[score] for score in scores]
    assert [one["meta_info"]["prompt_tokens"] for one in answer] == list(map(len, ids))
    assert ask(client, {"input_ids": ids}, "/classify")[1]["embedding"] == [scores[1]]
    assert ask(client, {"text": rendered(GOOD)[0]}, "/classify")["embedding"] == [scores[0]]
    verl = ask(client, {"model": "any", "input": rendered(BAD)[0]}, "/v1/embeddings")
    assert verl["data"][-1]["embedding"][-1] == scores[1]


def test_openrlhf_posts_a_sample_with_its_prompt(client, scores, plain):
    start = rendered(GOOD)[0].partition(GOOD)[0]
    sent = {"query": rendered(GOOD, BAD), "prompts": [start, start], "labels": ["w4", None]}
    answer = ask(client, sent, "/get_reward")
    assert answer["rewards"] == answer["scores"] == scores
    assert set(map(len, answer["extra_logs"].values())) == {2}
    # A text that was decoded from tokens may not begin with its prompt, character by character.
    assert ask(client, sent | {"prompts": ["other", "others"]}, "/get_reward")["rewards"] == scores
    plainly = {"query": [f"{PROMPT}{GOOD}"], "prompts": [PROMPT], "labels": [None]}
    assert ask(client, plainly, "/get_reward")["rewards"] == scores[:1], (
        "a prompt in plain text is a user's message"
    )


def test_openrlhf_may_send_plain_prompts_and_responses_that_end_in_eos(client, plain):
    """It decodes with special tokens, so `query` ends in EOS, which the chat template writes as well."""
    prompts = [f"w{number} w{number + 7} w{3 * number}?" for number in range(16)]
    responses = [f"w{5 * number + 1} w{number}" for number in range(16)]
    expected = [
        plain.score(prompt, [response])[0] for prompt, response in zip(prompts, responses, strict=True)
    ]
    for end in ("", "<|im_end|>", "<|im_end|>\n", "<|im_end|><|im_end|>"):
        query = [f"{prompt}{response}{end}" for prompt, response in zip(prompts, responses, strict=True)]
        answer = ask(client, {"query": query, "prompts": prompts, "labels": [None] * 16}, "/get_reward")
        assert answer["rewards"] == pytest.approx(expected, abs=1e-5)
    kept = [
        ask(client, {"prompt": prompt, "responses": [f"{response}<|im_end|>"]}, "/v1/scores")["scores"][0]
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    assert max(abs(one - other) for one, other in zip(kept, expected, strict=True)) > 1e-3, "the control"


def test_slime_gets_the_bare_number(client, scores):
    assert ask(client, {"prompt": [USER], "response": GOOD, "label": "w4"}, "/rm") == scores[0]
    start = rendered(GOOD)[0].partition(GOOD)[0]
    assert ask(client, {"prompt": start, "response": f"{BAD}<|im_end|>\n", "label": None}, "/rm") == scores[1]


@pytest.fixture(scope="module")
def transformers_score(names):
    """The score of a whole text by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(names["scalar"])
    classifier = AutoModelForSequenceClassification.from_pretrained(names["scalar"]).eval()

    @torch.inference_mode()
    def score(text):
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        return classifier(ids).logits.item()

    return score


@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|>\n", "<|im_end|> \n\n"])
def test_responses_to_a_rendered_prompt_are_closed_if_needed(client, transformers_score, end):
    whole, other = rendered(GOOD, BAD)
    start = whole.partition(GOOD)[0]
    expected = [pytest.approx(transformers_score(text), abs=TOLERANCE) for text in (whole, other)]
    texts = [GOOD + end, BAD + end]
    assert ask(client, {"prompt": start, "responses": texts})["scores"] == expected
    assert ask(client, {"prompt": start, "response": texts[0], "label": None}, "/rm") == expected[0]
    sent = {"query": [start + text for text in texts], "prompts": [start] * 2, "labels": [None] * 2}
    assert ask(client, sent, "/get_reward")["rewards"] == expected
    cut_short = transformers_score(start + GOOD)
    assert abs(cut_short - transformers_score(whole)) > 100 * TOLERANCE, "the control: the end matters"
    assert ask(client, {"input": start + GOOD}, "/classify")["data"][0]["probs"] == [
        pytest.approx(cut_short, abs=TOLERANCE)
    ], "whole texts stay as they are"


def test_llama_factory_posts_whole_texts(client, scores):
    answer = ask(client, {"model": "model", "messages": rendered(GOOD, BAD)}, "/v1/score/evaluation")
    assert answer["scores"] == scores


def test_nemo_gym_verifies_and_compares(client, scores):
    def response(text):
        return {
            "id": "resp_1",
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "w9"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
            ],
        }

    sent = {
        "responses_create_params": {"input": [USER], "temperature": 0.5},
        "response": response(GOOD),
        "verifier_metadata": {"k": [1]},
    }
    answer = ask(client, sent, "/verify")
    assert answer == sent | {"reward": scores[0]}
    for output in ([], [{"type": "reasoning", "summary": []}], response("")["output"]):
        empty = client.post("/verify", json=sent | {"response": {"output": output}})
        assert empty.status_code == 422
    text_input = sent | {"responses_create_params": {"input": PROMPT}}
    assert ask(client, text_input, "/verify")["reward"] == scores[0]
    compared = ask(
        client,
        {
            "conversation_history": [USER],
            "response_objs": [response(GOOD), response(BAD)],
            "principle": "Be right.",
        },
        "/compare",
    )
    assert compared["rewards"] == scores


def test_every_example_of_the_documentation_is_answered(client):
    for routes in WIRE_FORMATS.values():
        for route in routes:
            ask(client, route.example, route.path)


def test_a_judge_that_cannot_read_a_whole_text_refuses_it(start):
    likelihood, tokens = start("likelihood"), start("tokens", {"format": "pointwise"})
    found = ask(likelihood, {"input": rendered(GOOD)}, "/classify")["data"][0]["probs"][0]
    apart = ask(likelihood, {"prompt": PROMPT, "responses": [GOOD]})["scores"][0]
    assert found == pytest.approx(apart, abs=1e-4), "the response starts after the header of the assistant"
    for client, text in ((likelihood, "no header"), (tokens, rendered(GOOD)), (start("baseline"), "text")):
        assert client.post("/classify", json={"input": text}).status_code in (400, 422)
