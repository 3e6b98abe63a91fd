"""Templates of others come to an end, and what they print is what jinja2's own sandbox prints."""

import resource
import time

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from longrm.data import sandbox
from longrm.data.sandbox import BoundedEnvironment, render
from longrm.errors import ModelError

ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
)
LARGE = (
    "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=9) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    "{{ 'x' * 99999999999 }}",
    "{{ 99999999999 * 'x' }}",
    "{{ [0] * 3000000000 }}",
    "{{ 9 ** 999999 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 999999999) }}",
    "{{ 'x'.ljust(999999999) }}",
    "{{ 'x' | center(999999999) }}",
    "{{ 'x' | indent(width=999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{% set x = 'x' * 99999 %}{{ x.replace('x', x) }}",
    "{% set x = 'x' * 99999 %}{{ x | replace('x', x) }}",
    "{% set x = 'x' * 99999 %}{{ x.join(range(99999) | map('string') | list) }}",
    "{% set x = 'x' * 99999 %}{{ range(99999) | map('string') | list | join(x) }}",
)
PLAIN = (
    "{{ 'a' ~ 1 ~ [2, none] ~ x }}|{{ 'ab' + 'c' }}|{{ 2 ** 10 }}|{{ 'a' * 3 }}|{{ [1] * 2 + [3] }}|{{ 7 % 4 }}",
    "{{ '%5.2f|%s' % (1.5, 'b') }}|{{ '{:>5}|{}'.format(1, 'b') }}|{{ 'x'.center(9, '-') }}|{{ 'x' | center(9) }}",
    "{% for a in range(9) if a % 2 %}{{ loop.index }}:{{ a }}{% if not loop.last %},{% endif %}{% else %}-{% endfor %}",
    "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
    "{% macro f(a, b='c') %}{{ a ~ b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{% call f(2) %}!{% endcall %}",
    "{{ 'a,b'.split(',') | join('-') }}|{{ 'aXa'.replace('X', '--') }}|{{ 'a\nb' | indent(4) }}|{{ [x] | tojson }}",
    "{% set n = namespace(t=0) %}{% for a in range(50) %}{% set n.t = n.t + a %}{% endfor %}{{ n.t }}",
    "{% filter upper %}a{{ 'b' ~ 'c' }}{% endfilter %}{% set y %}{{ x ~ x }}{% endset %}{{ y | length }}",
)  # fmt: skip


def made(text):
    return BoundedEnvironment(trim_blocks=True).from_string(text)


@pytest.fixture(autouse=True)
def little(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)


@pytest.mark.parametrize("text", ENDLESS)
def test_what_has_no_end_is_ended(text):
    template, began = made(text), time.thread_time()
    with pytest.raises(ModelError, match=r"works for more than 0\.3 seconds"):
        render(template)
    assert time.thread_time() - began < 3


@pytest.mark.parametrize("text", LARGE)
def test_what_would_fill_the_memory_is_never_made(text):
    template = made(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="makes something of more than|pads a text"):
        render(template)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB


@pytest.mark.parametrize("text", PLAIN)
def test_all_else_is_rendered_as_jinja2_renders_it(text):
    stock = ImmutableSandboxedEnvironment(trim_blocks=True).from_string(text).render(x="é<")
    assert render(made(text), x="é<") == stock
    assert stock


def test_time_is_counted_anew_for_every_rendering():
    template = made("{% for a in range(200) %}{% for b in range(20) %}{% endfor %}{% endfor %}x")
    assert [render(template) for _ in range(10)] == ["x"] * 10
