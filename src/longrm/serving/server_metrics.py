"""What a server counts, under the names that vLLM gave such counts, for Prometheus to collect."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from longrm.serving.asked import Failure, Scored

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072)


class ServerMetrics:
    """Counts requests and tokens; each server has counts of its own."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._read = Counter("longrm:prompt_tokens", "Tokens of prompts and responses.", registry=own)
        self._cached = Counter(
            "longrm:prompt_tokens_cached", "Of these, tokens that had been read before.", registry=own
        )
        self._queries = Counter(
            "longrm:prefix_cache_queries",
            "Tokens of prompts that were looked up in the prefix cache.",
            registry=own,
        )
        self._hits = Counter("longrm:prefix_cache_hits", "Of these, tokens that it held.", registry=own)
        self._success = Counter("longrm:request_success", "Requests that got scores.", registry=own)
        self._failures = Counter("longrm:request_failure", "Requests that got none.", ["kind"], registry=own)
        self._latency = Histogram(
            "longrm:e2e_request_latency_seconds",
            "From a request to its answer.",
            buckets=_SECONDS,
            registry=own,
        )
        self._queue = Histogram(
            "longrm:request_queue_time_seconds", "Until the model began.", buckets=_SECONDS, registry=own
        )
        self._sizes = Histogram(
            "longrm:request_prompt_tokens", "Tokens of a request.", buckets=_TOKENS, registry=own
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Adds a gauge, which is read when it is collected."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def scored(self, several: Sequence[Scored], seconds: float) -> None:
        """Counts a request that got scores."""
        total = sum(one.total_tokens for one in several)
        cached = sum(one.cached_tokens for one in several)
        self._read.inc(total)
        self._cached.inc(cached)
        self._queries.inc(sum(one.prompt_tokens for one in several))
        self._hits.inc(cached)
        self._success.inc()
        self._sizes.observe(total)
        self._latency.observe(seconds)
        self._queue.observe(max((one.waited for one in several), default=0.0))

    def failed(self, failure: Failure) -> None:
        """Counts a request that got none."""
        self._failures.labels(failure.kind).inc()

    def text(self) -> bytes:
        """All counts, as Prometheus reads them."""
        return generate_latest(self._registry)
