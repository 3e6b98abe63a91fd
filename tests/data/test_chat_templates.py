"""Messages whose content is a list of texts, for templates that read lists and for those that do not."""

import pytest
import tokenizers
from tokenizers import models
from transformers.utils.chat_template_utils import render_jinja_template

from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError

TEXTS = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
WRITES_ANYTHING = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
BOTH = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}|{% endfor %}{% endif %}<end>{% endfor %}"
).replace("|", "")
LISTS = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"


def render(template, messages):
    backend = tokenizers.Tokenizer(models.WordLevel({}))
    return Tokenizer.from_backend(backend, chat_template=template).render(messages)


def message(*texts):
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def of_transformers(template, messages):
    return render_jinja_template([messages], chat_template=template)[0][0]


@pytest.mark.parametrize("template", [TEXTS, WRITES_ANYTHING])
def test_texts_are_joined_for_a_template_that_reads_texts_alone(template):
    given = [message("An", "n"), {"role": "assistant", "content": "yes"}, message()]
    joined = [{**one, "content": text} for one, text in zip(given, ("Ann", "yes", ""), strict=True)]
    assert render(template, given) == of_transformers(template, joined)
    assert given[0] == message("An", "n"), "what was passed stays"


@pytest.mark.parametrize("template", [BOTH, LISTS])
def test_a_template_that_reads_lists_gets_them(template):
    given = [message("An", "n")]
    assert render(template, given) == of_transformers(template, given)


def test_what_is_no_text_is_left_to_the_template():
    image = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": "b"}]}
    with pytest.raises(DataError, match="cannot render these messages"):
        render(TEXTS, [image])
