"""What writes text: the interface of language models, and the client of those behind HTTP."""

from longrm.clients.completions import Completion, Request, Writer

__all__ = ["Completion", "Request", "Writer"]
