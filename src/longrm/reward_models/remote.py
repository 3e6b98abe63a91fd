"""Reward models behind HTTP."""

from collections.abc import Callable

from longrm.clients import Completion
from longrm.clients.addresses import split_address
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.data.tokenizing import Tokenizer
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.reward_models.settings import Judge


def load_remote(
    address: str, judge: Judge, remote: Remote, paid: Callable[[Completion], None] | None = None
) -> GenerativeRewardModel:
    """A language model on an OpenAI-compatible server, asked for its judgment.

    Args:
        address: `URL#NAME`, such as `http://127.0.0.1:8000/v1#NAME`.
        judge: How it is asked.
        remote: How requests are sent; with a `tokenizer`, prompts are counted and can be cut.
        paid: Is told of every answer that came from the server.

    Raises:
        ConfigError: The address is none, or the settings cannot go together.
        ModelError: The tokenizer cannot be loaded.
    """
    url, name = split_address(address)
    tokenizer = Tokenizer.load(remote.tokenizer) if remote.tokenizer else None
    count = None if tokenizer is None else lambda messages: len(tokenizer.generation_ids(messages))
    client = OpenAIClient(url, name, remote, limit=judge.max_length, count=count, on_usage=paid)
    return GenerativeRewardModel(client, judge, tokenizer=tokenizer)
