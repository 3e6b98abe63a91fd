"""The commands of docs/serving.md, run as they stand there."""

import json
import re
import shlex
from pathlib import Path

import pytest

from longrm.worlds.words_tokenizer import words_tokenizer

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)
LINES = [line for block in BLOCKS for line in block.splitlines() if line.startswith("curl")]
FIRST = shlex.split(LINES[0])[-1]


def test_the_first_prompt_is_that_of_the_readme():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    known, sent = words_tokenizer(), json.loads(FIRST)
    for text in (sent["prompt"], *sent["responses"]):
        assert json.dumps(text) in readme
        assert known.unk_id not in known.encode(text)
    assert known.unk_id in known.encode("Capital of France?"), "the control"


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[1].rpartition(":8000")[2])
def test_curl_commands_of_the_docs_work(client, line):
    command, address, *options = shlex.split(line)
    assert command == "curl"
    given = dict(zip(options[::2], options[1::2], strict=True))
    headers = dict([given["-H"].split(": ")]) if "-H" in given else {}
    path = address.removeprefix("http://127.0.0.1:8000")
    # As curl does, which sends the text of -d as a form unless a header overrides it.
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    sent = given.get("-d")
    response = client.get(path) if sent is None else client.post(path, content=sent, headers=form | headers)
    assert response.status_code == 200, response.text
    response.json()


def test_the_answer_has_the_fields_that_the_page_shows(client):
    shown, *_ = re.findall(r"```json\n(.*?)```", PAGE, flags=re.S)
    answer, shown = client.post("/v1/scores", content=FIRST).json(), json.loads(shown)
    assert answer.keys() == shown.keys()
    assert answer["usage"].keys() == shown["usage"].keys()
